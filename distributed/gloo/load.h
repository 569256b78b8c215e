// libtenon_gloo.so, opened by name: it may be absent, or not find Gloo.
#pragma once

#include <string>

#include "distributed/gloo/functions.h"

namespace tenon::distributed {

struct GlooLibrary {
  const tenon_gloo_functions* functions = nullptr;
  std::string why;  // there are none, and what to do about it
};

// Beside the library or program that this code is in, where TENON_LIBRARY_DIRS says, or as the
// system finds it. Opened once, and stays open.
const GlooLibrary& gloo_library();

// The same of one file, each time anew: for tests.
GlooLibrary open_gloo_library(const std::string& path);

}  // namespace tenon::distributed
