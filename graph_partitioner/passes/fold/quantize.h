// QuantizeLinear over constants, and the one rule of it that kernels share.
#pragma once

#include <optional>

#include "graph_partitioner/ir/graph.h"

namespace tenon::folding {

// The type whose rounding the division shows: `precision`, else the operands' own.
DType division_type(const ir::Node& node, DType x, DType scale);

// Codes of type `to`; null where the shapes do not fit. The axis is not negative, a zero point may
// be absent.
ir::TensorPtr quantize(const ir::Node& node, const ir::Tensor& x, const ir::Tensor& scale,
                       const ir::Tensor* zero_point, DType to);

// The largest code, that under the largest scale, and the smallest scale above 0.
constexpr float kE2m1Largest = 6, kNvfp4Largest = 6 * 448, kE4m3Smallest = 0x1p-9F;

// A weight in NVFP4: x is close to codes * scales * overall, a scale for each block of the last
// axis.
struct Nvfp4 {
  ir::TensorPtr codes, scales, overall;
};

// As trt::TRT_FP4QDQ defines it; nullopt where blocks do not fill the last axis, or x is not
// finite.
std::optional<Nvfp4> quantize_nvfp4(const ir::Tensor& x, int64_t block);

}  // namespace tenon::folding
