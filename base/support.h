// "Can you run this?" always gets an answer with a reason; unsupported is not an error.
#pragma once

#include <string>
#include <utility>

namespace tenon {

struct Support {
  bool ok = true;
  std::string reason;  // why not; empty when ok

  static Support yes() { return {}; }
  static Support no(std::string why) { return {false, std::move(why)}; }
  explicit operator bool() const { return ok; }
};

}  // namespace tenon
