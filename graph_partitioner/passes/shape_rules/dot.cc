// Products: MatMul and its quantised spellings, Gemm, Einsum, ScaledDot.
#include <map>
#include <string>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

// [..., M, K] x [..., K, N]; a 1-D operand loses its axis in the result.
std::optional<Shape> product(NodeFacts& facts, Shape a, Shape b) {
  if (a.empty() || b.empty()) return std::nullopt;
  const bool row = a.size() == 1, column = b.size() == 1;
  if (row) a.insert(a.begin(), Dim(1));
  if (column) b.emplace_back(1);
  const std::vector<Shape> batches = {Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2)};
  facts.require_equal(a.back(), b[b.size() - 2]);
  facts.require_broadcast(batches);
  auto result = broadcast_all(batches);
  if (!result) return std::nullopt;
  if (!row) result->push_back(a[a.size() - 2]);
  if (!column) result->push_back(b.back());
  return result;
}

void swap_last_two(Shape& shape) {
  if (shape.size() >= 2) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
}

void matmul_of(NodeFacts& facts, size_t a, size_t b) {
  if (!facts.shape(a) || !facts.shape(b)) return;
  if (auto result = product(facts, *facts.shape(a), *facts.shape(b))) facts.set_shape(0, *result);
}

void matmul(NodeFacts& facts) { matmul_of(facts, 0, 1); }
void qlinear_matmul(NodeFacts& facts) { matmul_of(facts, 0, 3); }

void fused_matmul(NodeFacts& facts) {
  const ir::Node& node = facts.node();
  const bool batches_moved = node.integer("transBatchA", 0) || node.integer("transBatchB", 0);
  if (!facts.shape(0) || !facts.shape(1) || batches_moved) return;
  Shape a = *facts.shape(0), b = *facts.shape(1);
  if (node.integer("transA", 0)) swap_last_two(a);
  if (node.integer("transB", 0)) swap_last_two(b);
  if (auto result = product(facts, std::move(a), std::move(b))) facts.set_shape(0, *result);
}

void gemm(NodeFacts& facts) {
  if (!facts.shape(0) || !facts.shape(1)) return;
  Shape a = *facts.shape(0), b = *facts.shape(1);
  if (a.size() != 2 || b.size() != 2) return;
  if (facts.node().integer("transA", 0)) swap_last_two(a);
  if (facts.node().integer("transB", 0)) swap_last_two(b);
  facts.require_equal(a[1], b[0]);
  facts.require_stretches(2, {a[0], b[1]});
  facts.set_shape(0, {a[0], b[1]});
}

void set_last(NodeFacts& facts, const Dim& columns) {
  const Shape* a = facts.shape(0);
  if (!a || a->empty()) return;
  Shape result = *a;
  result.back() = columns;
  facts.set_shape(0, std::move(result));
}

// The weight's packed form hides its dims; attributes N and K say them.
void matmul_nbits(NodeFacts& facts) {
  const Shape* a = facts.shape(0);
  if (!a || a->empty() || !facts.node().has("N") || !facts.node().has("K")) return;
  const int64_t columns = facts.node().integer("N", 0);
  facts.require_equal(a->back(), facts.node().integer("K", 0));
  facts.require_shape(5, {columns});
  set_last(facts, columns);
}

// The weight is [N, K/per_byte].
void weight_rows(NodeFacts& facts, int64_t per_byte, size_t bias) {
  const Shape* a = facts.shape(0);
  const Shape* weight = facts.shape(1);
  if (!a || a->empty() || !weight || weight->size() != 2) return;
  facts.require_equal(a->back(), (*weight)[1] * per_byte);
  facts.require_shape(bias, {weight->front()});
  set_last(facts, weight->front());
}

void fp4_weight(NodeFacts& facts) { weight_rows(facts, 2, 5); }
void fp8_weight(NodeFacts& facts) { weight_rows(facts, 1, 4); }

constexpr size_t kAlpha = 6, kBias = 7;  // inputs of a ScaledDot

void scaled_dot(NodeFacts& facts) {
  if (facts.node().body) return;  // the epilogue has decided
  const ir::ScaledDot dot = ir::ScaledDot::from(facts.node());
  if (!facts.shape(0)) return;
  Shape a = *facts.shape(0);
  if (dot.a_k_first) swap_last_two(a);
  Shape b;
  if (!dot.b_dims.empty()) {
    b = make_shape(dot.b_dims);
  } else if (facts.shape(1)) {
    b = *facts.shape(1);
  } else {
    return;
  }
  if (dot.b_k_last) swap_last_two(b);
  const auto result = product(facts, std::move(a), std::move(b));
  if (!result) return;
  facts.require_elements(kAlpha, 1);
  facts.require_stretches(kBias, *result);
  facts.set_shape(0, *result);
}

// Zero points are one number, or one for each row of A ([M], [..,M,1]) and column of B.
void matmul_integer(NodeFacts& facts) {
  matmul(facts);
  const auto& result = facts.shapes()[0];
  if (!result || result->size() < 2) return;
  const Shape* rows = facts.shape(2);
  if (rows && rows->size() == 1) {
    facts.require(rows->front(), ir::Relation::kStretches, result->end()[-2]);
  } else {
    facts.require_stretches(2, *result);
  }
  facts.require_stretches(3, *result);
}

// Plain letters only; an ellipsis is left to the runtime.
void einsum(NodeFacts& facts) {
  std::string equation = facts.node().text("equation", "");
  std::erase(equation, ' ');
  if (equation.find('.') != std::string::npos) return;
  const size_t arrow = equation.find("->");
  std::map<char, Dim> sizes;
  std::map<char, int> seen;
  size_t at = 0;
  for (size_t i = 0; i < facts.input_count(); ++i, ++at) {
    const Shape* shape = facts.shape(i);
    if (!shape) return;
    for (const Dim& dim : *shape) {
      if (at >= equation.size() || !std::isalpha(static_cast<unsigned char>(equation[at]))) return;
      const char letter = equation[at++];
      const auto [known, is_new] = sizes.try_emplace(letter, dim);
      if (!is_new) {  // a size of 1 broadcasts
        facts.require(known->second, ir::Relation::kBroadcasts, dim);
        const auto size = broadcast_all({{known->second}, {dim}});
        if (!size) return facts.contradict("sizes of one label clash");
        known->second = size->front();
      }
      ++seen[letter];
    }
  }
  std::string result;
  if (arrow != std::string::npos) {
    result = equation.substr(arrow + 2);
  } else {
    for (const auto& [letter, count] : seen) {
      if (count == 1) result += letter;
    }
  }
  Shape shape;
  for (char letter : result) {
    const auto size = sizes.find(letter);
    if (size == sizes.end()) return;
    shape.push_back(size->second);
  }
  facts.set_shape(0, std::move(shape));
}

constexpr ShapeRule kRules[] = {
    {"Einsum", einsum},
    {"Gemm", gemm},
    {"MatMul", matmul},
    {"MatMulInteger", matmul_integer},
    {"QLinearMatMul", qlinear_matmul},
    {"com.microsoft::DynamicQuantizeMatMul", matmul},
    {"com.microsoft::FusedGemm", gemm},
    {"com.microsoft::FusedMatMul", fused_matmul},
    {"com.microsoft::MatMulBlockQuantizedFp4Weight", fp4_weight},
    {"com.microsoft::MatMulBlockQuantizedFp8Weight", fp8_weight},
    {"com.microsoft::MatMulBnb4", matmul_nbits},
    {"com.microsoft::MatMulIntegerToFloat", matmul},
    {"com.microsoft::MatMulNBits", matmul_nbits},
    {"com.microsoft::TransposeMatMul", fused_matmul},
    {ir::kScaledDot, scaled_dot},
};

}  // namespace

std::span<const ShapeRule> dot_shape_rules() { return kRules; }

}  // namespace tenon
