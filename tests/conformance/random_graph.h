// Random graphs of ONNX ops, as an importer would bring them: only the inputs have shapes, and
// those are open in `b` and `s`.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "kernels/reference/tensor.h"

namespace tenon::kernels {

struct RandomGraph {
  ir::Graph graph;
  bool rounds = false;  // holds a Cast to f16 or a quantised weight: results step
};

RandomGraph random_graph(unsigned seed, int ops);

std::vector<reference::ReferenceTensor> random_inputs(const ir::Graph& graph, int64_t b, int64_t s,
                                                      std::mt19937& random);

}  // namespace tenon::kernels
