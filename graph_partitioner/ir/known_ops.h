// What passes and kernels know of each op that they read: its attributes, inputs and outputs.
//
// A newer runtime may give an op an attribute that changes its meaning. A node with one that the
// table does not list is left to others, by that name. Who reads
// a new attribute adds it here (tests/python/test_known_ops.py holds the table to the schemas
// of the newest runtime).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::ir {

struct KnownOp {
  std::string_view op;
  size_t inputs, outputs;  // at most
  // Names, with a space between. "name=1|10": known with these values only, because they mean what
  // happens anyway.
  std::string_view attributes;
};

std::span<const KnownOp> known_ops();

// Ops that no pass reads are not judged: no kernel takes them.
Support is_known(const Node& node);

}  // namespace tenon::ir
