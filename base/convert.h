// Exact conversions between every element type and double.
// Decoding agrees with ml_dtypes; encoding agrees with ONNX's Cast and QuantizeLinear.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace tenon {

// e8m0 has no zero and no sign: ONNX's Cast lets the caller pick the direction.
enum class RoundMode : uint8_t { kNearestEven, kUp, kDown };

struct EncodeRule {
  bool saturate = true;  // out of range: largest finite value, else NaN or infinity as ONNX defines
  RoundMode round = RoundMode::kNearestEven;
};

// `code` holds the element in its low bits, as stored.
double decode(DType dtype, uint64_t code);
// Floats follow `rule`; integers saturate or wrap as ONNX's Cast does for that type.
uint64_t encode(DType dtype, double value, EncodeRule rule = {});
// The last step of QuantizeLinear, from x / scale: integers round half to even, add the zero point
// and clamp (NaN becomes the lowest); floats are encoded.
uint64_t quantize(DType dtype, double scaled, double zero_point, EncodeRule rule = {});

// Element `index` of a packed or plain array.
uint64_t load_code(DType dtype, const void* data, int64_t index);
void store_code(DType dtype, void* data, int64_t index, uint64_t code);

double load_element(DType dtype, const void* data, int64_t index);
void store_element(DType dtype, void* data, int64_t index, double value, EncodeRule rule = {});

// 64-bit integers do not fit a double: these keep every bit.
int64_t load_integer(DType dtype, const void* data, int64_t index);

}  // namespace tenon
