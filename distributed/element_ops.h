// Reductions on the host, the same bits whoever computes them.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "distributed/reduction.h"

namespace tenon::distributed {

// out[i] becomes the reduction of inputs[r][i], from the first input to the last. Types of 16 and 8
// bits are computed in float32 and rounded once, at the end; out of range is what ONNX's Cast makes
// of it. Integers wrap around as two's complement. A NaN among the inputs of min or max wins.
// `out` may be one of the inputs. The type must be one that can_reduce allows.
void reduce_elements(DType dtype, Reduction reduction, std::span<const void* const> inputs,
                     void* out, int64_t count);

}  // namespace tenon::distributed
