// What cuDNN is asked to compute, as plain data: tensors with numbers for sizes, and operations on
// them. Printed by tests and dumps; plan.h makes descriptors of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "kernels/cudnn/names.h"

namespace tenon::cudnn {

// Packed, its dims in ONNX's order: the last one innermost (NCHW) or the channels (NHWC). Numbered
// by its place in Graph::tensors.
struct Tensor {
  DType dtype{};
  std::vector<int64_t> dims;
  bool is_virtual = false;     // between two operations, never in memory
  bool channels_last = false;  // in memory

  std::vector<int64_t> strides() const;
};

// One entry per spatial dim.
struct Window {
  std::vector<int64_t> pads_before, pads_after, strides;
};

struct ConvolutionStep {
  size_t x = 0, w = 0, y = 0;
  Window window;
  std::vector<int64_t> dilations;
};

struct PointwiseStep {
  PointwiseMode mode{};
  size_t x = 0;
  std::optional<size_t> b;
  size_t y = 0;
};

struct PoolingStep {
  ResampleMode mode{};
  size_t x = 0, y = 0;
  Window window;
  std::vector<int64_t> extents;  // of the window
};

using Step = std::variant<ConvolutionStep, PointwiseStep, PoolingStep>;

struct Graph {
  size_t add(Tensor tensor) {
    tensors.push_back(std::move(tensor));
    return tensors.size() - 1;
  }
  std::string text() const;

  std::vector<Tensor> tensors;  // those in memory first, as a call's buffers
  std::vector<Step> steps;
};

}  // namespace tenon::cudnn
