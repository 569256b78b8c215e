// OrtGraph in, ir::Graph out. Constants point into the OrtGraph: they die with it.
#pragma once

#include <onnxruntime_c_api.h>

#include <string>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "kernels/outside_weights.h"

namespace tenon::provider {

struct ImportedGraph {
  ir::Graph graph;
  // Imported node id (a node's `sources`) to the runtime's node.
  std::vector<const OrtNode*> nodes;
  std::vector<std::string> node_names;  // as the model has them, or "Op(first output)"
  // Inputs with a default value (weights listed as graph inputs): imported as constants, so that
  // they can be packed; node_compute checks at Run that nobody replaced them.
  std::vector<std::string> assumed_defaults;
  // Where constants come from that the model keeps in files of their own, if asked for.
  std::vector<kernels::BytesOfFile> files;
};

// Never fails because of what a model contains: types that Tenon does not know become kUndefined.
ImportedGraph import_graph(const OrtGraph& graph, bool with_files = false);

}  // namespace tenon::provider
