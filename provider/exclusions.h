// Entries of exclude_ops and exclude_nodes that no node answers to: most often misspelt.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "provider/options.h"

namespace tenon::provider {

class Exclusions {
 public:
  explicit Exclusions(const Options& options);

  // Bodies of control flow come before the graph that they are in.
  void see(const ir::Graph& graph);
  // Whether what was seen since the last call may hold functions of the model's own: the runtime
  // inlines them and asks again, once, and only then their nodes are seen. Custom ops look the
  // same, and are not asked about again.
  bool awaits_inlining();
  // A sentence for each option with entries that fit nothing so far.
  std::vector<std::string> complaints() const;

 private:
  std::set<std::string> ops_, nodes_;  // not met yet
  std::set<std::string> seen_ops_;
  bool calls_functions_ = false, waited_ = false;
};

}  // namespace tenon::provider
