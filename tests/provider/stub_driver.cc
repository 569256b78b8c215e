#include "stub_driver.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace tenon::testing {
namespace {

void* library() {
  static void* const opened = [] {
    void* found = dlopen(TENON_STUB_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (found == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::exit(2);
    }
    return found;
  }();
  return opened;
}

}  // namespace

void use_stub_driver(const char* script) {
  setenv("TENON_DRIVER_LIBRARY", TENON_STUB_DRIVER, 1);
  setenv("TENON_STUB_SCRIPT", script, 1);
}

void* stub_function(const char* name) { return dlsym(library(), name); }

void stub_script(const std::string& commands) {
  const auto give =
      reinterpret_cast<const char* (*)(const char*)>(stub_function("tenon_stub_script"));
  const char* problem = give(commands.c_str());
  EXPECT_EQ(problem, nullptr) << problem;
}

std::string stub_reports() {
  return reinterpret_cast<const char* (*)()>(stub_function("tenon_stub_reports"))();
}

std::string stub_leaks() {
  return reinterpret_cast<const char* (*)()>(stub_function("tenon_stub_leaks"))();
}

long stub_calls(const std::string& function) {
  return reinterpret_cast<long (*)(const char*)>(stub_function("tenon_stub_calls"))(
      function.c_str());
}

void stub_reset() { reinterpret_cast<void (*)()>(stub_function("tenon_stub_reset"))(); }

}  // namespace tenon::testing
