// Conv, com.microsoft::FusedConv (a bias, something added, a Relu), tenon::ChannelsLastConv and
// ConvTranspose as normalize() leaves it, as one cuDNN graph.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/cudnn/graph.h"
#include "kernels/cudnn/window.h"

namespace tenon::cudnn {

struct Convolution {
  DType dtype{};
  std::vector<int64_t> filter;  // dims of w
  WindowForm window;
  bool channels_last = false;  // all but the bias
  size_t rank = 4;             // of x and y as they are stored
  bool has_bias = false, has_summand = false, has_relu = false;
  bool transposed = false;  // alone: nothing is added to it

  bool is_fused() const { return has_summand || has_relu; }
  // x, w, what is added, the bias, y: those that there are. From sizes as they are stored.
  Graph graph(std::span<const int64_t> x, std::span<const int64_t> y) const;
};

struct ConvolutionAnswer {
  Support support;
  Convolution convolution;
};
ConvolutionAnswer convolution_of(const ir::Graph& graph, const ir::Node& node);

}  // namespace tenon::cudnn
