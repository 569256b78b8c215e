// An attention by heads: which ranks compute which, and what that asks of everything around it.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/support.h"
#include "distributed/sharding/plan.h"
#include "distributed/sharding/region.h"

namespace tenon::distributed {

struct AttentionPlan {
  Support answer;
  HeadShares heads;
  Decisions decisions;
  std::optional<Cut> gathered;            // its result, where what follows needs all heads
  std::map<std::string, Shares> symbols;  // of the caches' head dims
};

AttentionPlan plan_attention(const ir::Graph& graph, const Readers& readers, const Plan& before,
                             ir::NodeId id, int64_t ranks);

}  // namespace tenon::distributed
