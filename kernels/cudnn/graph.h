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

// Dims in ONNX's order; packed, the last one innermost (NCHW) or the channels (NHWC), unless
// strides are given. Numbered by its place in Graph::tensors.
struct Tensor {
  DType dtype{};
  std::vector<int64_t> dims;
  bool is_virtual = false;                  // between two operations, never in memory
  bool channels_last = false;               // in memory
  std::vector<int64_t> given_strides = {};  // empty: packed
  std::optional<double> constant = {};      // one element, which is a part of the plan
  bool in_tiles = false;                    // scales, in tiles of 128 rows and 4 blocks

  bool is_in_memory() const { return !is_virtual && !constant; }
  std::vector<int64_t> strides() const;
};

// One entry per spatial dim.
struct Window {
  std::vector<int64_t> pads_before, pads_after, strides;
};

// Transposed: the convolution that makes x of y, by its gradient; the window is that one's.
struct ConvolutionStep {
  size_t x = 0, w = 0, y = 0;
  Window window;
  std::vector<int64_t> dilations;
  bool transposed = false;
};

struct PointwiseStep {
  PointwiseMode mode{};
  size_t x = 0;
  std::optional<size_t> b;
  size_t y = 0;
  std::optional<size_t> t = {};      // kSelect: which of the two
  std::optional<int64_t> axis = {};  // kIndex
  DType compute = DType::kF32;
};

// c = a x b over the last two dims; rows of fewer heads in b serve several heads of a. The sizes of
// each batch row where they are fewer than the dims say: [batch, 1, 1, 1] of i32.
struct MatmulStep {
  size_t a = 0, b = 0, c = 0;
  std::optional<size_t> rows = {}, columns = {}, depth = {};
};

// Over the dims that y has one of.
struct ReductionStep {
  ReductionMode mode{};
  size_t x = 0, y = 0;
};

struct PoolingStep {
  ResampleMode mode{};
  size_t x = 0, y = 0;
  Window window;
  std::vector<int64_t> extents;  // of the window
};

// y = x * scale; `block`: elements along each of x's last two dims that share a scale.
struct DequantizeStep {
  size_t x = 0, scale = 0, y = 0;
  std::vector<int32_t> block;
};

// Blocks of `block` elements along the last dim of x become codes y and scales.
struct QuantizeStep {
  size_t x = 0, y = 0, scale = 0;
  int32_t block = 0;
};

using Step = std::variant<ConvolutionStep, PointwiseStep, PoolingStep, MatmulStep, ReductionStep,
                          DequantizeStep, QuantizeStep>;

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
