// Everything that makes a value of text or bytes: each must answer with a value that prints back,
// or with a UserError, whatever comes in.
#pragma once

#include <cstdint>
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
  int texts = 15000;  // that parsers_test tries
};

std::span<const Parser> parsers();
const Parser& parser(std::string_view name);

// The text with one of its numbers at an end of what it could be: bytes that change at random
// hardly ever make one.
std::string with_another_number(std::string text, uint64_t random);

}  // namespace tenon::fuzz
