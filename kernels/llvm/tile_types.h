// How elements of every type live in memory and in tiles, and how they turn into each other.
//
//   memory --load--> codes --dequantise--> numbers --cast--> codes --store--> memory
//
// Codes are what memory holds, one per lane; sub-byte types give one u8 lane per element. For types
// that are computed as they are (f32, f64, integers from 8 bits on, bool) codes are the numbers.
#pragma once

#include "base/convert.h"
#include "base/dtype.h"
#include "base/support.h"
#include "codegen/tile/builder.h"

namespace tenon::kernels {

using Tile = codegen::ValueId;

// f16, bf16 and the small floats are computed in f32, integers below a byte in i32.
DType compute_type(DType dtype);
// Element type of a buffer; a byte for everything narrower.
DType storage_type(DType dtype);
Support supports_type(DType dtype);

Tile dequantize_tile(codegen::Builder& b, Tile codes, DType dtype);
// Of numbers that `dtype` can hold, or that are to be rounded to it (f16, bf16).
Tile quantize_tile(codegen::Builder& b, Tile numbers, DType dtype);

// ONNX's Cast: numbers of `from` (in its compute type) to codes of `to`.
Tile cast_to_codes(codegen::Builder& b, Tile numbers, DType from, DType to, EncodeRule rule);
// Round half to even, add the zero point (kNone: 0), clamp, quantise; floats are only rounded.
Tile quantize_to_codes(codegen::Builder& b, Tile scaled, Tile zero_point, DType to, bool saturate);

// Numbers in f32 as they are after a stay in `dtype`; what is too large saturates.
Tile rounded_to(codegen::Builder& b, Tile numbers, DType dtype);

// A constant of `dtype`'s compute type; `shape` as in Builder::constant.
Tile constant_tile(codegen::Builder& b, DType dtype, const void* data, int64_t index,
                   std::vector<int> shape = {});

}  // namespace tenon::kernels
