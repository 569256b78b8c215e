// One program per parser, which TENON_FUZZED_PARSER names. `--seeds <folder>` writes what to begin
// from and ends; run it in the project's root.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "parsers.h"

namespace {

const tenon::fuzz::Parser& chosen() {
  static const tenon::fuzz::Parser& parser = tenon::fuzz::parser(TENON_FUZZED_PARSER);
  return parser;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string_view((*argv)[1]) != "--seeds") return 0;
  int number = 0;
  for (const std::string& seed : chosen().seeds(".")) {
    std::ofstream((*argv)[2] + ("/seed_" + std::to_string(number++))) << seed;
  }
  std::exit(0);
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// libFuzzer's own, and every fourth time a number.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  if (seed % 4 != 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string text = tenon::fuzz::with_another_number(
      {reinterpret_cast<const char*>(data), size}, seed * uint64_t{0x9E3779B97F4A7C15});
  size = std::min(text.size(), max_size);
  std::copy_n(text.begin(), size, data);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    chosen().take({reinterpret_cast<const char*>(data), size});
  } catch (const tenon::UserError&) {
    // The answer to a text that is none; any other exception ends the program.
  }
  return 0;
}
