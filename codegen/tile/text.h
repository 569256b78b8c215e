// Print and parse tile kernels: parse(print(k)) prints the same text.
#pragma once

#include <string>
#include <string_view>

#include "codegen/tile/ir.h"

namespace tenon::codegen {

std::string print(const Kernel& kernel);
Kernel parse(std::string_view text);  // throws UserError with the line

}  // namespace tenon::codegen
