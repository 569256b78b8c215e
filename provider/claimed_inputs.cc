#include "provider/claimed_inputs.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::provider {
namespace {

// A name that no other node of the graph has.
std::string result_of(const ir::Graph& graph, const ir::Node& node) {
  const auto first =
      std::ranges::find_if(node.outputs, [](ir::ValueId output) { return output != ir::kNoValue; });
  return first == node.outputs.end() ? node.name : graph.value(*first).name;
}

}  // namespace

void ClaimedInputs::note(const ir::Graph& imported, const Partitioning& partitioning) {
  for (const Partition& partition : partitioning.partitions) {
    const auto facts = std::make_shared<const std::vector<ir::InputFacts>>(partition.inputs);
    for (const int source : partition.sources) {
      by_result_[result_of(imported, imported.node(imported.order()[source]))] = facts;
    }
  }
}

const std::vector<ir::InputFacts>& ClaimedInputs::of(const ir::Graph& part) const {
  const std::string result = result_of(part, part.node(part.order().at(0)));
  const auto found = by_result_.find(result);
  if (found == by_result_.end()) {
    throw InternalError(fmt::format("the partition that makes '{}' was never claimed", result));
  }
  return *found->second;
}

}  // namespace tenon::provider
