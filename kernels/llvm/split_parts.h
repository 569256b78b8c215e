// f32 operands for matrix units that multiply bf16: x = hi + mid + lo, each exactly a bf16.
#pragma once

#include <vector>

#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

// The leading `parts` terms, largest first. By truncation, so that three hold every bit of a normal
// f32 and what is left is always exact. Infinities and NaN stand in the first term alone.
std::vector<Tile> split_bf16(codegen::Builder& b, Tile numbers, int parts);

// How many terms hold every number of a type: bf16 1, f16 2, f32 3.
int bf16_parts(DType dtype);

// acc + left x right (f32) of such terms: smallest products first; those below the last bit of an
// f32 are left out.
Tile dot_parts(codegen::Builder& b, Tile acc, const std::vector<Tile>& left,
               const std::vector<Tile>& right);

}  // namespace tenon::kernels
