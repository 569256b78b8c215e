// Print and parse tile kernels: parse(print(k)) prints the same text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "codegen/tile/ir.h"

namespace tenon::codegen {

std::string print(const Kernel& kernel);
// With a remark about each tile, for people: it does not parse back.
std::string print(const Kernel& kernel, const std::function<std::string(ValueId)>& remark);
// What the text calls each value, and the line of each operation (the first one, if it has
// regions).
struct KernelWords {
  std::vector<std::string> names;
  std::unordered_map<const Operation*, std::string> lines;
};
KernelWords words_of(const Kernel& kernel);
Kernel parse(std::string_view text);  // throws UserError with the line

}  // namespace tenon::codegen
