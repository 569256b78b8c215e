// Read first: the ordered passes from an imported graph to fused nodes.
#pragma once

#include <functional>
#include <string_view>

#include "graph_partitioner/supports.h"

namespace tenon {

// Called after each pass with its name and the graph: dumps, timing, golden tests.
using PassObserver = std::function<void(std::string_view pass, const ir::Graph& graph)>;

using ShardFn = std::function<void(ir::Graph& graph)>;

// A pure function: the same graph in gives the same graph out. A pattern that cannot be matched
// stays as it is; nothing here fails because of what a model contains.
// `shard`, where given, makes this rank's share of the graph as soon as products and attentions are
// matched; it knows no other pass.
// Products are merged, and take in the norms before them, where `supports` takes what comes out.
// Claims do without (`supports` empty): what runs merged runs apart too.
ir::Graph fuse(ir::Graph imported, const PassObserver& observe = {},
               const SupportsFn& supports = {}, const ShardFn& shard = {});

// One pass by name, as if every node were supported, for golden tests and the stage tool; throws
// UserError listing the names.
ir::Graph run_pass(std::string_view pass, ir::Graph graph);

}  // namespace tenon
