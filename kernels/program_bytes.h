// A program as bytes, without its code: slots, launches, sizes as text, checks, what waits for
// what, and the report. Constants of a few bytes are among them; the others lie elsewhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/running/program.h"

namespace tenon::kernels {

// Whether it is among the bytes of to_bytes().
bool is_small_constant(const Slot& slot);
// Bytes of a constant that are not packed yet are made now.
std::shared_ptr<const void> constant_bytes(const Slot& slot);

// `weights`: small constants, too. Throws UserError naming a launch that cannot be saved.
std::string to_bytes(const Program& program, bool weights);

struct ProgramFromBytes {
  Program program;
  bool has_weights = false;  // constants of a few bytes are there; the others are to be found
};
// Throws UserError for bytes that to_bytes() does not write. Calls of cuDNN only say what they are.
// What was read is sound as far as check_program() sees.
ProgramFromBytes program_from_bytes(std::string_view bytes);

}  // namespace tenon::kernels
