// Attention with operands of 8 bits as graphs spell it, against the same graph in float64: what the
// graph rounds, the fused kernel rounds.
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

// How a graph rounds: the type of its numbers and of its codes. All but P's rounding is exact: the
// other scales are powers of two and the inputs have few bits.
struct Format {
  const char *type, *codes;
  const char *root, *scale, *one;  // 0.5, 1/16 and 1
  const char* zero;                // of the codes of q, k and v
  const char *probability_scale, *probability_zero;
};
constexpr Format kFp8F32 = {"f32",      "f8e4m3fn", "0000003f", "0000803d",
                            "0000803f", "00",       "2549123b", "00"};
constexpr Format kFp8F16 = {"f16", "f8e4m3fn", "0038", "002c", "003c", "00", "9218", "00"};
constexpr Format kU8 = {"f32", "u8", "0000003f", "0000803d", "0000803f", "80", "8180803b", "00"};
constexpr Format kI8 = {"f32", "i8", "0000003f", "0000803d", "0000803f", "03", "0000803b", "80"};

std::string graph_text(const Format& format, bool rounds_probabilities) {
  std::string text = R"(graph rounded {
  input %q: T[b,s,4,16]
  input %k: T[b,t,4,16]
  input %v: T[b,t,4,16]
  input %mask: T[b,1,1,t]
  const %root: T[] = hex:ROOT
  const %one: T[] = hex:ONE
  const %qs: T[] = hex:SCALE
  const %ps: T[] = hex:SHARE
  const %zero: C[] = hex:ZERO
  const %pz: C[] = hex:FIRST
  %qt: T[b,4,s,16] = Transpose@13(%q) {perm=[0,2,1,3]}
  %kt: T[b,4,16,t] = Transpose@13(%k) {perm=[0,2,3,1]}
  %vt: T[b,4,t,16] = Transpose@13(%v) {perm=[0,2,1,3]}
  %qm: T[b,4,s,16] = Mul@14(%qt, %root)
  %qq: C[b,4,s,16] = QuantizeLinear@19(%qm, %qs, %zero) {saturate=1}
  %qd: T[b,4,s,16] = DequantizeLinear@19(%qq, %qs, %zero)
  %km: T[b,4,16,t] = Mul@14(%kt, %root)
  %kq: C[b,4,16,t] = QuantizeLinear@19(%km, %qs, %zero) {saturate=1}
  %kd: T[b,4,16,t] = DequantizeLinear@19(%kq, %qs, %zero)
  %qk: T[b,4,s,t] = MatMul@13(%qd, %kd)
  %ma: T[b,4,s,t] = Add@14(%qk, %mask)
  %p: T[b,4,s,t] = Softmax@13(%ma) {axis=-1}
PROBABILITIES
  %vq: C[b,4,t,16] = QuantizeLinear@19(%vt, %qs, %zero) {saturate=1}
  %vd: T[b,4,t,16] = DequantizeLinear@19(%vq, %qs, %zero)
  %y: T[b,4,s,16] = MatMul@13(%weights, %vd)
  output %y
})";
  const auto replace = [&](const std::string& what, const std::string& by) {
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what)) {
      text.replace(at, what.size(), by);
    }
  };
  replace("PROBABILITIES", rounds_probabilities
                               ? "  %pq: C[b,4,s,t] = QuantizeLinear@19(%p, %ps, %pz)\n"
                                 "  %weights: T[b,4,s,t] = DequantizeLinear@19(%pq, %ps, %pz)"
                               : "  %weights: T[b,4,s,t] = Mul@14(%p, %one)");
  replace(" T[", std::string(" ") + format.type + "[");
  replace(" C[", std::string(" ") + format.codes + "[");
  replace("ROOT", format.root);
  replace("ONE", format.one);
  replace("SCALE", format.scale);
  replace("SHARE", format.probability_scale);
  replace("ZERO", format.zero);
  replace("FIRST", format.probability_zero);
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

void judge(const Format& format, int64_t queries, int64_t keys) {
  SCOPED_TRACE(std::string(format.type) + " in " + format.codes + ", queries " +
               std::to_string(queries) + ", keys " + std::to_string(keys));
  const ir::Graph graph = ir::parse(graph_text(format, true));
  const ir::Graph smooth = ir::parse(graph_text(format, false));
  const ir::Graph fused = fuse(graph);
  EXPECT_GT(fused_attention(fused).probability_scale, 0.0f);
  const Settings settings = conformance_settings();
  ASSERT_EQ(runs(fused, settings).reason, "");
  const std::unique_ptr<Executable> executable = build_for_test(fused, settings);
  const std::vector<ReferenceTensor> inputs = inputs_for(graph, queries, keys);
  const ReferenceTensor y = run(*executable, fused, inputs).at(0);
  const double near =
      std::string_view(format.type) == "f16" ? 4e-3 : 2e-6;  // y's elements are below 3
  const int64_t rows = y.elements() / kDepth;
  const ReferenceTensor expected = reference::evaluate(graph, inputs).at(0);
  EXPECT_LE(rows_apart(y, expected, near), rows / 50);
  EXPECT_EQ(rows_apart(y, expected, 0.4), 0);  // one step of a code times the largest v
  // The same without the rounding is something else, so that the first line says something.
  EXPECT_GT(rows_apart(y, reference::evaluate(smooth, inputs).at(0), near), rows / 2);
}

TEST(RoundedAttention, RoundsWhatTheGraphRounds) {
  for (const Format& format : {kFp8F32, kFp8F16, kU8, kI8}) {
    judge(format, 37, 53);
    judge(format, 64, 200);
  }
}

TEST(RoundedAttention, OneQuery) {
  for (const Format& format : {kFp8F32, kFp8F16, kU8, kI8}) judge(format, 1, 150);
}

}  // namespace
}  // namespace tenon::kernels
