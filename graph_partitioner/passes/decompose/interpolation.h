// Pixels that are picked along several axes, and weighed: what GridSample and Resize end as.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph_partitioner/passes/decompose/emitter.h"

namespace tenon::decomposition {

// Each tap of an axis has an index; several have a weight each, against the result.
struct PickedAxis {
  int64_t axis = 0;              // of the pixels, once those in front were picked along
  std::vector<ValueId> indices;  // against what is left of the pixels (tenon::Pick)
  std::vector<ValueId> weights;
  std::vector<ValueId> outside;  // against the result: where zero stands for the pixel; or empty
};

// The sum over all taps of all axes. Indices are negative where `outside` is true.
ValueId interpolate(Emitter& emit, ValueId pixels, std::span<const PickedAxis> axes);

// Of two neighbours, for a place that lies `share` behind the first.
std::vector<ValueId> linear_weights(Emitter& emit, ValueId share);

// Of four neighbours in a row, for a place that lies `share` behind the second: cubic convolution
// (Keys 1981). PyTorch and ONNX start from the slope -0.75.
inline constexpr double kUsualSlope = -0.75;
std::vector<ValueId> cubic_weights(Emitter& emit, ValueId share, double slope);

}  // namespace tenon::decomposition
