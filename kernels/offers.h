// What candidates offer for a node before anybody has chosen.
#pragma once

#include <vector>

#include "kernels/planning/candidate.h"
#include "kernels/planning/choice.h"

namespace tenon::kernels {

struct Offer {
  const Candidate* candidate = nullptr;
  Plan plan;

  // Its ranges that Runs can come to, cut to the rows that it takes.
  std::vector<RangePlan> ranges() const;
};

struct Offers {
  std::vector<Verdict> verdicts;  // in table order
  std::vector<Offer> plans;       // of those that said yes, in table order
};

// Who only wants to know whether somebody runs the node asks no one behind the first who takes all
// rows.
enum class Asked : uint8_t { kAll, kUntilOneRuns };

Offers ask(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
           Asked asked = Asked::kAll);

// Who comes first has the rows that it takes, the next one what is left of them; nothing where some
// are left over.
std::vector<PartChoice> deal_rows(const std::vector<Offer>& plans);

}  // namespace tenon::kernels
