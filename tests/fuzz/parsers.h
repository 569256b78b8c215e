// Everything that makes a value of text or bytes: each must answer with a value that prints back,
// or with a UserError, whatever comes in.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::fuzz {

struct Parser {
  std::string_view name;
  void (*take)(std::string_view text);
  // Texts that it takes, to begin from; found below the project's root.
  std::vector<std::string> (*seeds)(const std::string& root);
};

std::span<const Parser> parsers();
const Parser& parser(std::string_view name);

}  // namespace tenon::fuzz
