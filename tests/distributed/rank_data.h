// Elements of every type that each rank can make for all others, and what a reduction of them is by
// float64.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "distributed/reduction.h"

namespace tenon::distributed {

using Bytes = std::vector<unsigned char>;

inline constexpr DType kMovedTypes[] = {
    DType::kBool,   DType::kI2,         DType::kU2,         DType::kI4,     DType::kU4,
    DType::kI8,     DType::kU8,         DType::kI16,        DType::kU16,    DType::kI32,
    DType::kU32,    DType::kI64,        DType::kU64,        DType::kF4E2M1, DType::kF8E4M3FN,
    DType::kF8E5M2, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ, DType::kF8E8M0, DType::kF16,
    DType::kBF16,   DType::kF32,        DType::kF64};
inline constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kProd, Reduction::kMin,
                                            Reduction::kMax, Reduction::kAverage};

// Any code of integers; floats between -2 and 2.
Bytes random_elements(DType dtype, int64_t count, uint64_t seed);

// Empty where out is what the reduction of inputs[r], from element `begin` on, must be: exact for
// integers, min and max; else within the rounding errors of float32 sums (float64 sums for f64)
// before it is rounded to the type.
std::string wrong_reduction(DType dtype, Reduction reduction, const std::vector<Bytes>& inputs,
                            int64_t begin, const void* out, int64_t count);

}  // namespace tenon::distributed
