// What the whole graph knows of the inputs of each partition, from GetCapability to Compile: the
// runtime hands a claimed part back without it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph_partitioner/partition.h"

namespace tenon::provider {

class ClaimedInputs {
 public:
  // Claims of a graph take the place of those with the same results: the runtime asks more than
  // once, and compiles what was claimed last. Bodies of control flow may use one name twice; each
  // is compiled before the next one is asked for.
  void note(const ir::Graph& imported, const Partitioning& partitioning);
  // Throws InternalError where the part was never claimed.
  const std::vector<ir::InputFacts>& of(const ir::Graph& part) const;

 private:
  using Facts = std::shared_ptr<const std::vector<ir::InputFacts>>;
  std::map<std::string, Facts> by_result_;  // of every claimed node
};

}  // namespace tenon::provider
