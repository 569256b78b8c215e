// One program per parser, which TENON_FUZZED_PARSER names. `--seeds <folder>` writes what to begin
// from and ends; run it in the project's root.
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

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    chosen().take({reinterpret_cast<const char*>(data), size});
  } catch (const tenon::UserError&) {
    // The answer to a text that is none; any other exception ends the program.
  }
  return 0;
}
