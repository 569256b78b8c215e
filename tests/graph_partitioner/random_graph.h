// Random directed acyclic graphs of ops that nobody knows: for tests that look at structure only.
#pragma once

#include <random>
#include <string>

#include "graph_partitioner/ir/graph.h"

namespace tenon::testing {

inline int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

inline ir::Value random_value(std::mt19937& random, std::string name) {
  constexpr DType kTypes[] = {DType::kF32, DType::kI64, DType::kU4, DType::kF8E4M3FN, DType::kBool};
  ir::Value value;
  value.name = std::move(name);
  value.dtype = kTypes[pick(random, 0, 4)];
  if (pick(random, 0, 4) != 0) {
    Shape shape;
    for (int64_t i = pick(random, 0, 3); i > 0; --i) {
      const Dim symbol = Dim::symbol("s" + std::to_string(pick(random, 0, 2)));
      const Dim dims[] = {pick(random, 1, 9), symbol, symbol * 4 + 1, floor_div(symbol + 3, 16)};
      shape.push_back(dims[pick(random, 0, 3)]);
    }
    value.shape = shape;
  }
  return value;
}

inline ir::Attribute random_attribute(std::mt19937& random) {
  switch (pick(random, 0, 8)) {
    case 0:
      return pick(random, -5, 5);
    case 1:
      return std::uniform_real_distribution<float>(-1e3f, 1e3f)(random);
    case 2:
      return std::string("quote\" back\\slash\nnew line");
    case 3:
      return std::vector<int64_t>{1, -2, 3};
    case 4:
      return std::vector<float>{1.0f, -0.1f, 1e-30f, std::numeric_limits<float>::infinity()};
    case 5:
      return std::vector<std::string>{"a", "b c", ""};
    case 6:
      return std::vector<float>{};
    case 7:
      return std::vector<std::string>{};
    default:
      return ir::Tensor::of(DType::kF16, {2}, {0.5, -3});
  }
}

// Node i has source i. Inputs, constants and earlier results feed each node.
inline ir::Graph random_graph(std::mt19937& random, int nodes) {
  ir::Graph graph;
  graph.name = "random graph";
  std::vector<ir::ValueId> values;
  for (int i = 0; i < 3; ++i) {
    values.push_back(graph.add_input(random_value(random, "in/" + std::to_string(i))));
  }
  values.push_back(graph.add_constant("odd name: %", ir::Tensor::of(DType::kU4, {3}, {1, 2, 15})));
  for (int i = 0; i < nodes; ++i) {
    ir::Node node;
    node.op = i % 3 == 0 ? "test::Op" : "Op" + std::to_string(i % 4);
    node.since_version = static_cast<int>(pick(random, 0, 20));
    node.name = pick(random, 0, 1) ? "n" + std::to_string(i) : "";
    node.sources = {i};
    for (int64_t k = pick(random, 0, 3); k > 0; --k) {
      // Recent values more often: long chains.
      const auto count = static_cast<int64_t>(values.size());
      const int64_t from = pick(random, 0, 1) ? std::max<int64_t>(0, count - 4) : 0;
      node.inputs.push_back(pick(random, 0, 9) == 0 ? ir::kNoValue
                                                    : values[pick(random, from, count - 1)]);
    }
    if (pick(random, 0, 2) == 0) node.attributes["attribute"] = random_attribute(random);
    for (int64_t k = pick(random, 1, 2); k > 0; --k) {
      const ir::ValueId out = graph.add_value(random_value(random, "v"));
      node.outputs.push_back(out);
      values.push_back(out);
    }
    graph.add_node(std::move(node));
  }
  graph.add_output(values.back());
  graph.add_output(values[values.size() / 2]);
  return graph;
}

}  // namespace tenon::testing
