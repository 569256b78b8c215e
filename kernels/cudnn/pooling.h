// MaxPool and AveragePool as a cuDNN graph.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/cudnn/graph.h"
#include "kernels/cudnn/window.h"
#include "kernels/planning/lowered.h"

namespace tenon::cudnn {

struct Pooling {
  DType dtype{};
  ResampleMode mode{};
  WindowForm window;
  size_t rank = 4;  // of x and y as they are stored

  Graph graph(std::span<const int64_t> x, std::span<const int64_t> y) const;
};

struct PoolingAnswer {
  Support support;
  Pooling pooling;
  std::vector<kernels::SizeCheck> sizes = {};  // that a Run must have
};
PoolingAnswer pooling_of(const ir::Graph& graph, const ir::Node& node);

}  // namespace tenon::cudnn
