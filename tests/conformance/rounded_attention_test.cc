// Attention with fp8 operands as graphs spell it, against the same graph in float64: what the graph
// rounds, the fused kernel rounds.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/reference/evaluate.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kDepth = 16;

// All but P's rounding is exact: scales are powers of two and the inputs have few bits.
std::string graph_text(const std::string& type, bool rounds_probabilities) {
  const bool half = type == "f16";
  std::string text = R"(graph fp8 {
  input %q: T[b,s,4,16]
  input %k: T[b,t,4,16]
  input %v: T[b,t,4,16]
  input %mask: T[b,1,1,t]
  const %root: T[] = hex:ROOT
  const %qs: T[] = hex:SCALE
  const %ps: T[] = hex:SHARE
  const %zero: f8e4m3fn[1] = hex:00
  %qt: T[b,4,s,16] = Transpose@13(%q) {perm=[0,2,1,3]}
  %kt: T[b,4,16,t] = Transpose@13(%k) {perm=[0,2,3,1]}
  %vt: T[b,4,t,16] = Transpose@13(%v) {perm=[0,2,1,3]}
  %qm: T[b,4,s,16] = Mul@14(%qt, %root)
  %qq: f8e4m3fn[b,4,s,16] = QuantizeLinear@19(%qm, %qs, %zero) {saturate=1}
  %qd: T[b,4,s,16] = DequantizeLinear@19(%qq, %qs)
  %km: T[b,4,16,t] = Mul@14(%kt, %root)
  %kq: f8e4m3fn[b,4,16,t] = QuantizeLinear@19(%km, %qs, %zero) {saturate=1}
  %kd: T[b,4,16,t] = DequantizeLinear@19(%kq, %qs)
  %qk: T[b,4,s,t] = MatMul@13(%qd, %kd)
  %ma: T[b,4,s,t] = Add@14(%qk, %mask)
  %p: T[b,4,s,t] = Softmax@13(%ma) {axis=-1}
PROBABILITIES
  %vq: f8e4m3fn[b,4,t,16] = QuantizeLinear@19(%vt, %qs, %zero) {saturate=1}
  %vd: T[b,4,t,16] = DequantizeLinear@19(%vq, %qs)
  %y: T[b,4,s,16] = MatMul@13(%weights, %vd)
  output %y
})";
  const auto replace = [&](const std::string& what, const std::string& by) {
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what)) {
      text.replace(at, what.size(), by);
    }
  };
  replace("PROBABILITIES", rounds_probabilities
                               ? "  %pq: f8e4m3fn[b,4,s,t] = QuantizeLinear@19(%p, %ps, %zero)\n"
                                 "  %weights: T[b,4,s,t] = DequantizeLinear@19(%pq, %ps)"
                               : "  %weights: T[b,4,s,t] = Mul@14(%p, %one)");
  if (!rounds_probabilities) {
    replace("const %ps: T[] = hex:SHARE", "const %one: T[] = hex:ONE");
  }
  replace("T[", type + "[");
  replace("ROOT", half ? "0038" : "0000003f");
  replace("SCALE", half ? "002c" : "0000803d");
  replace("SHARE", half ? "9218" : "2549123b");
  replace("ONE", half ? "003c" : "0000803f");
  return text;
}

std::vector<ReferenceTensor> inputs_for(const ir::Graph& graph, int64_t queries, int64_t keys) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> eighths(-24, 24);
  std::vector<ReferenceTensor> inputs;
  for (const ir::ValueId id : graph.inputs()) {
    const ir::Value& value = graph.value(id);
    const bool is_mask = value.name == "mask", is_query = value.name == "q";
    const std::vector<int64_t> dims =
        is_mask ? std::vector<int64_t>{2, 1, 1, keys}
                : std::vector<int64_t>{2, is_query ? queries : keys, 4, kDepth};
    ReferenceTensor tensor = ReferenceTensor::zeros(value.dtype, dims);
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      tensor.set(i, is_mask ? (i % 5 == 0 ? -INFINITY : 0.0) : eighths(random) / 8.0);
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

// Rows of y, one per query and head, with an element further from the reference than `most`. A
// probability that lies between two codes may end at either, which moves its whole row.
int64_t rows_apart(const ReferenceTensor& y, const ReferenceTensor& expected, double most) {
  int64_t rows = 0;
  for (int64_t first = 0; first < y.elements(); first += kDepth) {
    double largest = 0;
    for (int64_t i = first; i < first + kDepth; ++i) {
      largest = std::max(largest, std::abs(y.number(i) - expected.number(i)));
    }
    if (!(largest <= most)) ++rows;
  }
  return rows;
}

ir::Attention fused_attention(const ir::Graph& fused) {
  for (const ir::NodeId id : fused.order()) {
    if (fused.node(id).is(ir::kAttention)) return ir::Attention::from(fused.node(id));
  }
  ADD_FAILURE() << "no attention in\n" << ir::print(fused);
  return {};
}

void judge(const std::string& type, int64_t queries, int64_t keys) {
  SCOPED_TRACE(type + ", queries " + std::to_string(queries) + ", keys " + std::to_string(keys));
  const ir::Graph graph = ir::parse(graph_text(type, true));
  const ir::Graph smooth = ir::parse(graph_text(type, false));
  const ir::Graph fused = fuse(graph);
  EXPECT_GT(fused_attention(fused).probability_scale, 0.0f);
  const Settings settings = conformance_settings();
  ASSERT_EQ(runs(fused, settings).reason, "");
  const std::unique_ptr<Executable> executable = build_for_test(fused, settings);
  const std::vector<ReferenceTensor> inputs = inputs_for(graph, queries, keys);
  const ReferenceTensor y = run(*executable, fused, inputs).at(0);
  const double near = type == "f16" ? 4e-3 : 2e-6;  // y's elements are below 3
  const int64_t rows = y.elements() / kDepth;
  const ReferenceTensor expected = reference::evaluate(graph, inputs).at(0);
  EXPECT_LE(rows_apart(y, expected, near), rows / 50);
  EXPECT_EQ(rows_apart(y, expected, 0.4), 0);  // one step of e4m3 times the largest v
  // The same without the rounding is something else, so that the first line says something.
  EXPECT_GT(rows_apart(y, reference::evaluate(smooth, inputs).at(0), near), rows / 2);
}

TEST(RoundedAttention, RoundsWhatTheGraphRounds) {
  for (const char* type : {"f32", "f16"}) {
    judge(type, 37, 53);
    judge(type, 64, 200);
  }
}

TEST(RoundedAttention, OneQuery) {
  judge("f32", 1, 150);
  judge("f16", 1, 150);
}

}  // namespace
}  // namespace tenon::kernels
