// What a tuning record is found by: everything of a fused node that times depend on, less the count
// of its rows and the values of its constants.
#pragma once

#include <string>

#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

struct FusionKey {
  // "tenon::ScaledDot(f16[*,4096], f4e2m1[4096,4096]#, …) -> (f16[*,4096])". *: rows; ?: another
  // size that is open; #: a constant.
  std::string text;
  std::string fingerprint;  // 32 hexadecimal digits of the text, the attributes and the body
};

FusionKey fusion_key(const ir::Graph& graph, const ir::Node& node, Precision precision);

}  // namespace tenon::kernels
