// Runs the graphs of all ranks side by side, node by node, with the reference, and does what they
// do together itself.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "distributed/sharding/shard.h"
#include "graph_partitioner/ir/collectives.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon::testing {

using kernels::reference::ReferenceTensor;

// One rank's graph with what it has computed so far.
struct RankState {
  ir::Graph graph;
  SymbolSizes symbols;
  std::vector<std::optional<ReferenceTensor>> values = {};
};

inline void set_inputs(RankState& rank, const std::vector<ReferenceTensor>& inputs) {
  rank.values.assign(rank.graph.value_count(), std::nullopt);
  for (size_t i = 0; i < inputs.size(); ++i) {
    rank.values[static_cast<size_t>(rank.graph.inputs()[i])] = inputs[i];
  }
  for (size_t id = 0; id < rank.graph.value_count(); ++id) {
    const ir::TensorPtr constant = rank.graph.value(static_cast<ir::ValueId>(id)).constant;
    if (constant && !rank.values[id]) rank.values[id] = ReferenceTensor::from(*constant);
  }
}

// A node as a graph of its own.
inline void run_node(RankState& rank, const ir::Node& node) {
  ir::Graph alone;
  std::map<ir::ValueId, ir::ValueId> inside{{ir::kNoValue, ir::kNoValue}};
  const auto copy_of = [&](ir::ValueId id) {
    const ir::Value& value = rank.graph.value(id);
    ir::Value copy;
    copy.name = value.name;
    copy.dtype = value.dtype;
    copy.shape = value.shape;
    return copy;
  };
  std::vector<ReferenceTensor> inputs;
  ir::Node copy = node;
  for (ir::ValueId& input : copy.inputs) {
    if (!inside.contains(input)) {
      inside[input] = alone.add_input(copy_of(input));
      inputs.push_back(*rank.values.at(static_cast<size_t>(input)));
    }
    input = inside.at(input);
  }
  for (ir::ValueId& output : copy.outputs) {
    if (output == ir::kNoValue) continue;
    output = alone.add_value(copy_of(output));
    alone.add_output(output);
  }
  alone.add_node(std::move(copy));
  kernels::reference::EvaluateOptions options;
  options.symbols.insert(rank.symbols.begin(), rank.symbols.end());
  auto results = kernels::reference::evaluate(alone, inputs, options);
  size_t next = 0;
  for (const ir::ValueId output : node.outputs) {
    if (output == ir::kNoValue) continue;
    rank.values.resize(std::max(rank.values.size(), rank.graph.value_count()));
    rank.values[static_cast<size_t>(output)] = std::move(results[next++]);
  }
}

// This rank's rows of what was summed.
inline ReferenceTensor scattered(const ir::Collective& collective, const ReferenceTensor& sum,
                                 size_t rank) {
  std::vector<int64_t> parts = collective.parts;
  if (parts.empty()) parts.assign(collective.ranks, sum.dims[0] / collective.ranks);
  int64_t first = 0;
  for (size_t before = 0; before < rank; ++before) first += parts[before];
  const int64_t row = sum.elements() / sum.dims[0];
  std::vector<int64_t> dims = sum.dims;
  dims[0] = parts[rank];
  ReferenceTensor part = ReferenceTensor::zeros(sum.dtype, dims);
  for (int64_t i = 0; i < part.elements(); ++i) part.copy_element(i, sum, first * row + i);
  return part;
}

inline ReferenceTensor exchanged(const ir::Collective& collective,
                                 const std::vector<ReferenceTensor>& brought) {
  ReferenceTensor result = brought[0];
  for (size_t rank = 1; rank < brought.size(); ++rank) {
    const ReferenceTensor& more = brought[rank];
    if (collective.op != ir::kAllGather) {
      EXPECT_EQ(more.dims, result.dims);
      for (int64_t i = 0; i < more.elements(); ++i) {
        result.set(i, result.number(i) + more.number(i));
      }
      continue;
    }
    result.dims[0] += more.dims[0];
    result.reals.insert(result.reals.end(), more.reals.begin(), more.reals.end());
    result.integers.insert(result.integers.end(), more.integers.begin(), more.integers.end());
  }
  return result;
}

// All ranks stand before the same collective.
inline void meet(std::vector<RankState>& ranks, size_t at) {
  std::vector<ReferenceTensor> brought;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const ir::Node& node = ranks[r].graph.node(ranks[r].graph.order()[at]);
    const auto collective = ir::Collective::from(node);
    const auto& x = *ranks[r].values.at(static_cast<size_t>(node.input(0)));
    const bool scatters = collective.op == ir::kReduceScatter;
    ASSERT_TRUE(scatters || collective.op == ir::kAllReduce || collective.op == ir::kAllGather);
    ASSERT_EQ(collective.ranks, std::ssize(ranks));
    if (!collective.parts.empty()) {
      ASSERT_EQ(collective.part, static_cast<int64_t>(r));
      if (!scatters) {
        ASSERT_EQ(collective.parts[r], x.dims[0]);
      }
    }
    brought.push_back(x);
  }
  const auto first = ir::Collective::from(ranks[0].graph.node(ranks[0].graph.order()[at]));
  const ReferenceTensor together = exchanged(first, brought);
  for (size_t r = 0; r < ranks.size(); ++r) {
    RankState& rank = ranks[r];
    const ReferenceTensor result =
        first.op == ir::kReduceScatter ? scattered(first, together, r) : together;
    const ir::Node& node = rank.graph.node(rank.graph.order()[at]);
    ASSERT_EQ(result.dims, dims_of(*rank.graph.value(node.output(0)).shape, rank.symbols));
    rank.values[static_cast<size_t>(node.output(0))] = result;
  }
}

// The ranks' outputs. Every rank has the same ops in the same order.
inline std::vector<std::vector<ReferenceTensor>> run_in_lockstep(std::vector<RankState>& ranks) {
  std::vector<std::vector<ReferenceTensor>> outputs(ranks.size());
  const std::vector<ir::NodeId> order = ranks[0].graph.order();
  for (size_t at = 0; at < order.size(); ++at) {
    const ir::Node& first = ranks[0].graph.node(order[at]);
    for (RankState& rank : ranks) {
      EXPECT_EQ(rank.graph.order().size(), order.size());
      const ir::Node& node = rank.graph.node(rank.graph.order().at(at));
      EXPECT_EQ(node.op, first.op);
      if (!ir::is_collective(node)) run_node(rank, node);
    }
    if (ir::is_collective(first)) meet(ranks, at);
    if (::testing::Test::HasFatalFailure()) return {};
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const ir::ValueId id : ranks[r].graph.outputs()) {
      outputs[r].push_back(*ranks[r].values.at(static_cast<size_t>(id)));
    }
  }
  return outputs;
}

// Heads `first`.. of a cache [B, H, S, D].
inline ReferenceTensor heads_of(const ReferenceTensor& cache, int64_t first, int64_t count) {
  std::vector<int64_t> dims = cache.dims;
  dims[1] = count;
  ReferenceTensor part = ReferenceTensor::zeros(cache.dtype, dims);
  const int64_t row = dims[2] * dims[3];
  for (int64_t b = 0; b < dims[0]; ++b) {
    for (int64_t i = 0; i < count * row; ++i) {
      part.copy_element(b * count * row + i, cache, (b * cache.dims[1] + first) * row + i);
    }
  }
  return part;
}

}  // namespace tenon::testing
