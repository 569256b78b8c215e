// What an operator asks of the sizes of its operands, where only a Run can tell whether it holds:
// the rows of one side of a product are as long as the other side's columns, say.
//
// Shape rules state requirements (passes/shape_rules/rule.h), a graph keeps them while passes
// dissolve the nodes that they come from, and an executable checks them when it binds symbols.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/shape.h"

namespace tenon::ir {

enum class Relation : uint8_t {
  kEqual,
  kBroadcasts,  // equal, or either is 1
  kStretches,   // equal, or the left one is 1
  kAtMost,      // left <= right
  kDivides,     // the left one divides the right one
};

struct Requirement {
  Dim left;
  Relation relation{};
  Dim right;
  std::string node;          // name of the node that asks for it, for messages
  std::vector<int> sources;  // ids of imported nodes, as a node's
};

std::string_view relation_name(Relation relation);  // "equal", "at_most", …
std::optional<Relation> parse_relation(std::string_view name);

bool holds(int64_t left, Relation relation, int64_t right);
// What holds, or does not, whatever the symbols turn out to be; nullopt: only a Run can tell.
std::optional<bool> decide(const Dim& left, Relation relation, const Dim& right);
// "sizes 3 (m) and 4 must be equal"
std::string explain(const Requirement& broken, int64_t left, int64_t right);

}  // namespace tenon::ir
