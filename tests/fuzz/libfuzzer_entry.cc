// One program per parser; TENON_FUZZED_PARSER names it.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tenon::fuzz::Parser& parser = tenon::fuzz::parser(TENON_FUZZED_PARSER);
  try {
    parser.take({reinterpret_cast<const char*>(data), size});
  } catch (const tenon::UserError&) {
    // The answer to a text that is none; any other exception ends the program.
  }
  return 0;
}
