// What the file asks of products and tables of a graph, as far as it can be done.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "distributed/sharding/annotations.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::distributed {

enum class Wish : uint8_t { kWhole, kColumns, kRows };
std::string_view name(Wish wish);

struct Wishes {
  std::map<ir::NodeId, Wish> nodes;
  std::map<ir::NodeId, std::string> asked_by;  // the file's name of each of them
  std::vector<UnfollowedAnnotation> unfollowed;
};

Wishes find_wishes(const ir::Graph& graph, const Annotations& annotations, int64_t ranks);

}  // namespace tenon::distributed
