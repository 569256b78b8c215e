// From an imported graph to claims: which imported nodes go into which partition, and why the
// others do not.
#pragma once

#include <string>
#include <vector>

#include "graph_partitioner/ir/input_facts.h"
#include "graph_partitioner/supports.h"

namespace tenon {

struct PartitionOptions {
  bool claim_all = false;                  // claim partitions that gain nothing, too
  std::vector<std::string> exclude_ops;    // "Softmax", "com.microsoft::MatMulNBits"
  std::vector<std::string> exclude_nodes;  // node names
  bool on_host = false;  // what is left out runs on the processor that claims would run on
  // The session is one of several ranks: what is left out runs whole on each of them, whatever time
  // one rank would save.
  bool of_several_ranks = false;
};

struct LeftOut {
  int source = 0;  // imported node id
  std::string reason;
};

struct Partition {
  std::vector<int> sources;  // imported node ids, sorted: convex, and disjoint from the others'
  // What it was claimed with; who compiles it tells them to its graph again (ir::tell_inputs).
  std::vector<ir::InputFacts> inputs;
};

struct Partitioning {
  std::vector<Partition> partitions;
  std::vector<LeftOut> left_out;  // every node in no partition, once
};

Partitioning partition(const ir::Graph& imported, const SupportsFn& supports,
                       const PartitionOptions& options);

}  // namespace tenon
