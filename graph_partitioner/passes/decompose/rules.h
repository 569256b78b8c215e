// One table of rules per family of ops; decompose.cc looks an op up in all of them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "graph_partitioner/passes/decompose/emitter.h"

namespace tenon::decomposition {

// What stands for the node's outputs, in order (kNoValue for one that nobody uses). Empty: the node
// stays as it is. decompose() adds the Cast where a result's dtype differs from the output's.
using Results = std::vector<ValueId>;
using Rule = Results (*)(Emitter& emit, const Node& node);

struct NamedRule {
  std::string_view op;
  Rule rule;
};

std::span<const NamedRule> activation_rules();
std::span<const NamedRule> normalization_rules();
std::span<const NamedRule> softmax_rules();
std::span<const NamedRule> quantization_rules();
std::span<const NamedRule> movement_rules();
std::span<const NamedRule> position_rules();
std::span<const NamedRule> resize_rules();
std::span<const NamedRule> grid_sample_rules();
std::span<const NamedRule> variadic_rules();
std::span<const NamedRule> collective_rules();

}  // namespace tenon::decomposition
