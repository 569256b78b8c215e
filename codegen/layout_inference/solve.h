// From constraints to layouts: what must hold is reduced to classes of tiles that lie alike and the
// few ways each may lie; among these the cheapest combination is taken.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/layout_inference/constraints.h"

namespace tenon::codegen {

// Ways that a class of tiles may lie, at most: dealt, and what its neighbours ask for.
inline constexpr size_t kMostCandidates = 8;

// Layouts of all values. Throws UserError with unsatisfied_core() where there are none.
std::vector<Layout> solve(const System& system);

// The constraints that contradict each other, none of which can be left out; empty if none do.
std::vector<const Constraint*> unsatisfied_core(const System& system);

// Every constraint on a line of its own, with what it costs under these layouts.
std::string priced(const System& system, const std::vector<Layout>& layouts);

// What these layouts cost, or nothing where a constraint does not hold.
std::optional<int64_t> price_of(const System& system, const std::vector<Layout>& layouts);

}  // namespace tenon::codegen
