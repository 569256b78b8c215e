// Judges a pass: the graph after it computes what the graph before it did.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "kernels/reference/evaluate.h"

namespace tenon::testing {

using kernels::reference::ReferenceTensor;
using SymbolSizes = std::map<std::string, int64_t>;

inline std::vector<int64_t> dims_of(const Shape& shape, const SymbolSizes& sizes) {
  std::vector<int64_t> dims;
  for (const Dim& dim : shape) {
    dims.push_back(
        dim.evaluate([&](std::string_view name) { return sizes.at(std::string(name)); }));
  }
  return dims;
}

// Values that each type can hold; integers stay small, so that they serve as indices too.
inline ReferenceTensor random_tensor(DType dtype, std::vector<int64_t> dims, std::mt19937& random) {
  ReferenceTensor tensor = ReferenceTensor::zeros(dtype, std::move(dims));
  std::normal_distribution<double> normal(0.0, 1.0);
  std::uniform_int_distribution<int> small(0, dtype == DType::kBool ? 1 : 2);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    if (tensor.is_real()) {
      tensor.set(i, decode(dtype, encode(dtype, normal(random))));
    } else {
      tensor.set(i, small(random));
    }
  }
  return tensor;
}

inline std::vector<ReferenceTensor> random_inputs(const ir::Graph& graph, const SymbolSizes& sizes,
                                                  std::mt19937& random) {
  std::vector<ReferenceTensor> inputs;
  for (const ir::ValueId id : graph.inputs()) {
    const ir::Value& value = graph.value(id);
    inputs.push_back(random_tensor(value.dtype, dims_of(*value.shape, sizes), random));
    // A total length of 0 makes a Run fail, so it has no result to compare; 1 would be a prompt.
    if (value.name == "total" && inputs.back().number(0) == 0) inputs.back().set(0, 2);
  }
  return inputs;
}

// The judge rounds where a Cast stands: a half may be off by its own last bit.
inline double tolerance_of(DType dtype) {
  return dtype == DType::kF16 ? 1e-3 : dtype == DType::kBF16 ? 8e-3 : 1e-6;
}

inline void expect_equal(const ReferenceTensor& expected, const ReferenceTensor& got) {
  const double tolerance = tolerance_of(expected.dtype);
  ASSERT_EQ(expected.dtype, got.dtype);
  ASSERT_EQ(expected.dims, got.dims);
  for (int64_t i = 0; i < expected.elements(); ++i) {
    const double e = expected.number(i), g = got.number(i);
    if (std::isnan(e) && std::isnan(g)) continue;
    if (e == g) continue;
    ASSERT_NEAR(e, g, tolerance * std::max(1.0, std::fabs(e))) << "element " << i;
  }
}

// Evaluates both on the same random inputs. Symbols get the sizes given here.
inline void expect_equivalent(const ir::Graph& before, const ir::Graph& after,
                              const SymbolSizes& sizes = {}, unsigned seed = 1) {
  const Support valid = ir::verify(after);
  ASSERT_TRUE(valid.ok) << valid.reason << "\n" << ir::print(after);
  std::mt19937 random(seed);
  const auto inputs = random_inputs(before, sizes, random);
  const auto expected = kernels::reference::evaluate(before, inputs);
  const auto got = kernels::reference::evaluate(after, inputs);
  ASSERT_EQ(expected.size(), got.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE("output " + std::to_string(i) + " of\n" + ir::print(after));
    expect_equal(expected[i], got[i]);
  }
}

// "Loop[Add Mul] Concat Reshape": the shape of a graph on one line.
inline std::string outline_text(const ir::Graph& graph) {
  std::string text;
  for (const ir::NodeId id : graph.order()) {
    const ir::Node& node = graph.node(id);
    std::string op = node.op;
    if (op.rfind("tenon::", 0) == 0) op = op.substr(7);
    text += (text.empty() ? "" : " ") + op;
    if (node.body) text += "[" + outline_text(*node.body) + "]";
  }
  return text;
}

inline int count_ops(const ir::Graph& graph, std::string_view op) {
  int count = 0;
  for (const ir::NodeId id : graph.order()) count += graph.node(id).is(op);
  return count;
}

}  // namespace tenon::testing
