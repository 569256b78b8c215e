// What ranks compare of the model that each of them opened.
#pragma once

#include <string>

#include "graph_partitioner/ir/graph.h"

namespace tenon::provider {

// "24 nodes, 9 constants of 81920 bytes, sha256 5e21…": of nodes, names, types and shapes, and of
// a sample of each MiB of each constant. Reading all of a model's weights would take seconds, and
// another file, or one with a hole, differs in some sample.
std::string model_digest(const ir::Graph& graph);

}  // namespace tenon::provider
