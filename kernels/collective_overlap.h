// Collectives beside other work on a GPU: the order of nodes that allows it, which collectives run
// aside, and what of it the report tells.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/candidate.h"
#include "kernels/running/program.h"

namespace tenon::kernels {

class CollectiveOverlap {
 public:
  CollectiveOverlap(const ir::Graph& graph, const Settings& settings);

  // Places of `nodes` in the order in which they are launched; the first `fixed` stay where they
  // are. `microseconds`: expected of each. As given where there is nothing to overlap.
  std::vector<size_t> order(std::span<const ir::NodeId> nodes, size_t fixed,
                            std::span<const double> microseconds) const;
  // The launches of the program that were not noted yet are the node's, whose report is the last.
  void note_launches(const ir::Node& node, const Program& program);
  void put_aside(Program& program) const;

 private:
  double microseconds(const ir::Node& collective) const;
  bool is_gain(size_t launch, size_t joined) const;
  void tell(Program& program, size_t launch) const;

  struct Noted {
    size_t report = 0;
    double microseconds = 0;  // all of a node's at its first launch
  };
  const ir::Graph& graph_;
  const Settings& settings_;
  bool is_wanted_ = false;
  std::vector<Noted> launches_;
};

}  // namespace tenon::kernels
