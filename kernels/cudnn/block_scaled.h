// A dot of two block-scaled matrices as one cuDNN graph, for Blackwell: both are dequantised on the
// way to the product.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/support.h"
#include "kernels/cudnn/graph.h"

namespace tenon::cudnn {

// y[b] = factor * a[b] x b[b]ᵀ: a is [batch, m, k], b [batch, n, k]; blocks run along k.
struct BlockScaledDot {
  DType a_type{}, b_type{}, scale_type{};
  int64_t block = 0;
  DType result{};           // f32, f16, bf16, or the type of codes
  bool has_factor = false;  // one f32 in memory
  // Where the result is codes: the type of their scales.
  DType result_scale_type = DType::kUndefined;

  bool has_codes() const { return result_scale_type != DType::kUndefined; }

  struct Sizes {
    int64_t batch = 1, m = 0, n = 0, k = 0;
  };
  // a, its scales, b, its scales, the factor where there is one, y, its scales where it has some.
  Graph graph(const Sizes& sizes) const;
};

// Whether cuDNN knows the pair of types, and this version does what is asked.
Support takes(const BlockScaledDot& dot, int version, int compute_major);

// Scales of `rows` and `blocks` along k, filled up to whole tiles of 128 rows and 4 blocks.
struct ScaleTiles {
  int64_t rows = 0, blocks = 0;

  int64_t padded_rows() const { return (rows + 127) / 128 * 128; }
  int64_t padded_blocks() const { return (blocks + 3) / 4 * 4; }
  int64_t bytes() const { return padded_rows() * padded_blocks(); }
  // Where the scale of (row, block) lies.
  int64_t offset(int64_t row, int64_t block) const;
  // From scales one row after the other; what is filled up is 0.
  std::vector<std::byte> from_rows(std::span<const std::byte> scales) const;
};

}  // namespace tenon::cudnn
