// Attention as one cuDNN graph: the products, the scale, what hides scores and the softmax as
// operations of their own, which cuDNN's engines know as a whole.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/cudnn/graph.h"
#include "kernels/cudnn/versions.h"

namespace tenon::cudnn {

// Query i stands at i, or where `from_end` is set at i + keys - queries, and sees the keys from
// position - left to position + right; -1: unlimited.
struct Band {
  int64_t left = -1, right = -1;
  bool from_end = false;

  bool hides() const { return left >= 0 || right >= 0; }
};

struct SdpaSizes {
  int64_t batch = 0, queries = 0, keys = 0;
  // In elements, between batch rows, heads and rows; columns follow each other.
  struct Strides {
    int64_t batch = 0, head = 0, row = 0;
  } q, k, v, y;

  static constexpr size_t kCount = 15;
  static SdpaSizes from(std::span<const int64_t> numbers);  // in the order of the members
};

struct Sdpa {
  DType dtype{};
  int64_t heads = 0, kv_heads = 0, depth = 0, value_depth = 0;
  float scale = 1;
  Band band;
  // Batch rows have keys of their own number. Each of their lengths is [batch] of i32: how many
  // queries and keys there are and, where the band counts from the end, how far before the last key
  // the first query stands.
  bool has_lengths = false;
  int version = 0;  // of the cuDNN that is asked

  bool has_distances() const { return has_lengths && band.from_end; }
  // What the gates of versions look at; SdpaProblem::kOpen: any number of them.
  SdpaProblem gates(int64_t queries, int64_t keys, int compute_major) const;
  // q, k, v, lengths of queries and of keys and those distances where there are, y.
  Graph graph(const SdpaSizes& sizes) const;
};

}  // namespace tenon::cudnn
