// Sliding windows as ONNX writes them, and what cuDNN is told of them once sizes are numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/cudnn/graph.h"

namespace tenon::cudnn {

// One entry per spatial dim, of which there are two or three: a convolution of one dim is one of
// two whose first is 1.
struct WindowForm {
  std::vector<int64_t> kernel, strides, dilations, pads_before, pads_after;
  std::string auto_pad = "NOTSET";
  bool ceil_mode = false;
};

struct WindowAnswer {
  Support support;
  WindowForm form;
};

WindowAnswer window_of(const ir::Node& node, std::vector<int64_t> kernel);
// Of a tensor whose sizes are in the order of ONNX: with the dim of 1 where there is one spatial.
std::vector<int64_t> with_two_spatial(std::span<const int64_t> dims);
// The same of a tensor as it is stored.
std::vector<int64_t> in_onnx_order(std::span<const int64_t> stored, bool channels_last);
// From the whole dims of x and y, both as in_onnx_order() gives them.
Window resolve(const WindowForm& form, std::span<const int64_t> x, std::span<const int64_t> y);

}  // namespace tenon::cudnn
