// A small matcher: what shape of producers stands behind a value?
//
//   Match match;
//   const Pattern capped = op("Mul", {op("Tanh", {op("Div", {any("x"), constant("cap")})}),
//                                     constant("cap")});
//   if (capped(graph, value, match)) use(match["x"]);
//
// A name that appears twice must stand for the same value, or for constants of equal value.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon {

struct Match {
  std::map<std::string, ir::ValueId, std::less<>> values;
  std::vector<int> sources;  // of every node that took part

  ir::ValueId operator[](std::string_view name) const;  // kNoValue when not captured
};

// True and `match` extended, or false and `match` as it was.
using Pattern = std::function<bool(const ir::Graph&, ir::ValueId, Match&)>;

Pattern any(std::string name);
Pattern constant(std::string name);  // one element, not overridable
// The first output of a node with one of these ops ("Mul|Div"). Inputs match in order; those of
// Add and Mul in either order. Inputs of the node beyond the list must be absent.
Pattern op(std::string_view ops, std::vector<Pattern> inputs, std::string name = "");
Pattern either(Pattern first, Pattern second);
// `inner` with or without one such op in front of it.
Pattern optional(std::string_view ops, Pattern inner);

// The value of a constant with one element.
std::optional<double> scalar_constant(const ir::Graph& graph, ir::ValueId id);
// All elements of a constant of integers, or as shape arithmetic knows them; nullopt when unknown.
std::optional<std::vector<int64_t>> constant_integers(const ir::Graph& graph, ir::ValueId id);
// Every element of a constant is 0 (of either sign).
bool is_constant_zero(const ir::Graph& graph, ir::ValueId id);

}  // namespace tenon
