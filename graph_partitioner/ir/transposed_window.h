// The windows of a ConvTranspose as its attributes, the filter [C, M/group, k…] and the input's
// sizes make them: element i of the input adds to the elements i * stride + tap * dilation - pad of
// the result.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/shape.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::ir {

// One entry per spatial dim.
struct TransposedWindow {
  std::vector<int64_t> kernel, strides, dilations;
  std::vector<int64_t> pads_before, pads_after;  // elements of the result that are cut off
  std::vector<int64_t> added;  // output_padding: elements behind, which no tap hits
  Shape extents;               // of the result

  size_t rank() const { return kernel.size(); }
};

// nullopt where attributes contradict each other or the shapes, or name an output_shape while the
// input's sizes are open.
std::optional<TransposedWindow> transposed_window(const Node& node, const Shape& x, const Shape& w);

}  // namespace tenon::ir
