// What the runtime's own CPU provider makes of imported nodes.
//
// A quantiser writes DequantizeLinear → Conv → QuantizeLinear, and the CPU provider runs the three
// as one QLinearConv on 8-bit integers, if all of them are its own: a claim of one of them costs it
// the integers. So a node and those that quantise for it are claimed together or not at all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon {

struct IntegerGroup {
  std::vector<ir::NodeId> nodes;  // the node that computes first
  std::string reason;             // what stock kernels make of them
};

// Groups that stock kernels run on integers. A node that quantises may stand in several.
std::vector<IntegerGroup> integer_groups(const ir::Graph& imported);

using IsLeft = std::function<bool(ir::NodeId)>;

// The node that stays with others and takes this one along, which quantises or dequantises
// integers: all readers of what it dequantises do, or the node whose result it quantises, or the
// other half of its pair: codes do not cross from one provider to another, since stock kernels may
// change their type. kNoNode where there is none, or the node is no such node.
ir::NodeId served_by_others(const ir::Graph& imported, ir::NodeId quantiser, const IsLeft& is_left);

// Has the CPU provider no kernel for the node, or one that refuses such operands? Nobody but us
// runs it on the host then.
bool lacks_stock_kernel(const ir::Graph& imported, const ir::Node& node);

}  // namespace tenon
