#include "graph_partitioner/pattern.h"

#include <algorithm>

#include "base/convert.h"

namespace tenon {
namespace {

constexpr int64_t kMostIntegers = 4096;

bool lists(std::string_view ops, std::string_view op) {
  while (!ops.empty()) {
    const size_t end = std::min(ops.find('|'), ops.size());
    if (ops.substr(0, end) == op) return true;
    ops.remove_prefix(std::min(end + 1, ops.size()));
  }
  return false;
}

bool is_commutative(std::string_view op) { return op == "Add" || op == "Mul"; }

bool same_value(const ir::Graph& graph, ir::ValueId a, ir::ValueId b) {
  if (a == b) return true;
  const auto left = scalar_constant(graph, a);
  return left.has_value() && left == scalar_constant(graph, b);
}

bool capture(const ir::Graph& graph, const std::string& name, ir::ValueId id, Match& match) {
  if (name.empty()) return true;
  const auto [place, is_new] = match.values.emplace(name, id);
  return is_new || same_value(graph, place->second, id);
}

bool match_inputs(const ir::Graph& graph, const std::vector<Pattern>& patterns,
                  const std::vector<ir::ValueId>& inputs, Match& match) {
  Match attempt = match;
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (!patterns[i](graph, inputs[i], attempt)) return false;
  }
  match = std::move(attempt);
  return true;
}

}  // namespace

ir::ValueId Match::operator[](std::string_view name) const {
  const auto found = values.find(name);
  return found == values.end() ? ir::kNoValue : found->second;
}

Pattern any(std::string name) {
  return [name = std::move(name)](const ir::Graph& graph, ir::ValueId id, Match& match) {
    return id != ir::kNoValue && capture(graph, name, id, match);
  };
}

Pattern constant(std::string name) {
  return [name = std::move(name)](const ir::Graph& graph, ir::ValueId id, Match& match) {
    return scalar_constant(graph, id).has_value() && capture(graph, name, id, match);
  };
}

Pattern op(std::string_view ops, std::vector<Pattern> inputs, std::string name) {
  return [ops = std::string(ops), inputs = std::move(inputs), name = std::move(name)](
             const ir::Graph& graph, ir::ValueId id, Match& match) {
    const ir::Node* node = graph.producer(id);
    if (node == nullptr || !lists(ops, node->op) || node->output(0) != id) return false;
    for (size_t i = inputs.size(); i < node->inputs.size(); ++i) {
      if (node->inputs[i] != ir::kNoValue) return false;
    }
    std::vector<ir::ValueId> given(inputs.size(), ir::kNoValue);
    for (size_t i = 0; i < given.size(); ++i) given[i] = node->input(i);
    Match attempt = match;
    if (!capture(graph, name, id, attempt)) return false;
    bool found = match_inputs(graph, inputs, given, attempt);
    if (!found && given.size() == 2 && is_commutative(node->op)) {
      std::swap(given[0], given[1]);
      found = match_inputs(graph, inputs, given, attempt);
    }
    if (!found) return false;
    attempt.sources = ir::merge_sources(attempt.sources, node->sources);
    match = std::move(attempt);
    return true;
  };
}

Pattern either(Pattern first, Pattern second) {
  return [first = std::move(first), second = std::move(second)](const ir::Graph& graph,
                                                                ir::ValueId id, Match& match) {
    return first(graph, id, match) || second(graph, id, match);
  };
}

Pattern optional(std::string_view ops, Pattern inner) { return either(op(ops, {inner}), inner); }

std::optional<double> scalar_constant(const ir::Graph& graph, ir::ValueId id) {
  if (id == ir::kNoValue || !graph.value(id).is_constant()) return std::nullopt;
  const ir::Tensor& tensor = *graph.value(id).constant;
  if (tensor.elements() != 1) return std::nullopt;
  return load_element(tensor.dtype, tensor.data, 0);
}

std::optional<std::vector<int64_t>> constant_integers(const ir::Graph& graph, ir::ValueId id) {
  if (id == ir::kNoValue) return std::nullopt;
  const ir::Value& value = graph.value(id);
  std::vector<int64_t> result;
  if (value.is_constant() && is_integer(value.dtype)) {
    const int64_t count = value.constant->elements();
    if (count > kMostIntegers) return std::nullopt;
    for (int64_t i = 0; i < count; ++i) {
      result.push_back(load_integer(value.dtype, value.constant->data, i));
    }
    return result;
  }
  if (!value.elements) return std::nullopt;
  for (const Dim& element : *value.elements) {
    if (!element.is_constant()) return std::nullopt;
    result.push_back(element.value());
  }
  return result;
}

bool is_constant_zero(const ir::Graph& graph, ir::ValueId id) {
  if (id == ir::kNoValue || !graph.value(id).is_constant()) return false;
  const ir::Tensor& tensor = *graph.value(id).constant;
  const int64_t count = tensor.elements();
  for (int64_t i = 0; i < count; ++i) {
    if (load_element(tensor.dtype, tensor.data, i) != 0.0) return false;
  }
  return true;
}

}  // namespace tenon
