// Attention in each spelling.
#include <array>
#include <string>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/head_layout.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

struct Heads {
  Dim batch, heads, length, size;
};

// q, k or v: [B, H, S, D] or [B, S, H*D].
std::optional<Heads> heads_of(NodeFacts& facts, size_t input, int64_t heads) {
  if (!facts.shape(input)) return std::nullopt;
  const Shape& s = *facts.shape(input);
  if (s.size() == 4) return Heads{s[0], s[1], s[2], s[3]};
  if (s.size() != 3 || heads <= 0) return std::nullopt;
  facts.require(heads, ir::Relation::kDivides, s[2]);
  return Heads{s[0], heads, s[1], floor_div(s[2], heads)};
}

void require_together(NodeFacts& facts, const Heads& q, const Heads& k, const Heads& v) {
  facts.require_equal(k.batch, q.batch);
  facts.require_equal(v.batch, q.batch);
  facts.require_equal(v.heads, k.heads);
  facts.require_equal(v.length, k.length);
  facts.require_equal(k.size, q.size);
}

// Keys with those of the past, whose caches are operands `keys` and `values`.
Dim add_past(NodeFacts& facts, size_t keys, size_t values, const Heads& k, const Heads& v) {
  const Shape* past = facts.shape(keys);
  if (!past || past->size() != 4) return k.length;
  facts.require_shape(keys, {k.batch, k.heads, (*past)[2], k.size});
  facts.require_shape(values, {v.batch, v.heads, (*past)[2], v.size});
  return (*past)[2] + k.length;
}

// Y, present_key, present_value, qk_matmul_output.
void attention(NodeFacts& facts) {
  const auto q = heads_of(facts, 0, facts.node().integer("q_num_heads", 0));
  const auto k = heads_of(facts, 1, facts.node().integer("kv_num_heads", 0));
  const auto v = heads_of(facts, 2, facts.node().integer("kv_num_heads", 0));
  if (!q || !k || !v) return;
  require_together(facts, *q, *k, *v);
  facts.require(k->heads, ir::Relation::kDivides, q->heads);
  if (facts.shape(0)->size() == 4) {
    facts.set_shape(0, {q->batch, q->heads, q->length, v->size});
  } else {
    facts.set_shape(0, {q->batch, q->length, q->heads * v->size});
  }
  if (facts.has_input(4) && (!facts.shape(4) || facts.shape(4)->size() != 4)) return;
  const Dim total = add_past(facts, 4, 5, *k, *v);
  // A mask may be shorter than the keys from opset 24 on, but not longer.
  if (const Shape* mask = facts.shape(3); mask && !mask->empty()) {
    facts.require(mask->back(), ir::Relation::kAtMost, total);
  }
  facts.require_shape(6, {q->batch});
  facts.set_shape(1, {k->batch, k->heads, total, k->size});
  facts.set_shape(2, {v->batch, v->heads, total, v->size});
  facts.set_shape(3, {q->batch, q->heads, q->length, total});
}

// Of GroupQueryAttention.
constexpr size_t kPastKeys = 3, kSequenceLengths = 5, kHeadSinks = 11;

// A cache that keeps the keys of a window only must hold the whole window.
void require_room_for_window(NodeFacts& facts) {
  const Shape* past = facts.shape(kPastKeys);
  if (facts.node().integer("sliding_window_cache", 0) == 0 || !past || past->size() != 4) return;
  const int64_t window = facts.node().integer("local_window_size", -1);
  facts.require(window, ir::Relation::kAtMost, (*past)[2]);
}

// The caches' length depends on the buffers that the caller binds: it stays as given.
void group_query_attention(NodeFacts& facts) {
  const Shape* q = facts.shape(0);
  if (!q || q->size() != 3) return;
  const int64_t heads = facts.node().integer("num_heads", 0);
  const int64_t kv_heads = facts.node().integer("kv_num_heads", 0);
  if (heads <= 0 || kv_heads <= 0) return;
  const int64_t parts = facts.has_input(1) ? heads : heads + 2 * kv_heads;
  facts.require(parts, ir::Relation::kDivides, (*q)[2]);
  facts.require_elements(kSequenceLengths, (*q)[0]);
  facts.require_shape(kHeadSinks, {heads});
  require_room_for_window(facts);
  facts.set_shape(0, {(*q)[0], (*q)[1], floor_div((*q)[2], parts) * heads});
}

// q, k and v with heads apart: [B, S, H*D], packed [B, S, H, 3, D] and [B, L, H, 2, D], or a cache
// of cross attention, [B, H, L, D].
std::optional<std::array<Heads, 3>> multi_head_operands(NodeFacts& facts) {
  const int64_t heads = facts.node().integer("num_heads", 0);
  const Shape* q = facts.shape(0);
  const Shape* k = facts.shape(1);
  if (!q || heads <= 0) return std::nullopt;
  const auto packed = [](const Shape& s) { return Heads{s[0], s[2], s[1], s[4]}; };
  if (q->size() == 5) return std::array{packed(*q), packed(*q), packed(*q)};
  const auto queries = heads_of(facts, 0, heads);
  if (!queries || !k) return std::nullopt;
  if (k->size() == 5) return std::array{*queries, packed(*k), packed(*k)};
  const auto keys = heads_of(facts, 1, heads), values = heads_of(facts, 2, heads);
  if (!keys || !values) return std::nullopt;
  return std::array{*queries, *keys, *values};
}

// Y, present_key, present_value.
void multi_head_attention(NodeFacts& facts) {
  const auto operands = multi_head_operands(facts);
  if (!operands) return;
  const auto& [q, k, v] = *operands;
  require_together(facts, q, k, v);
  const Dim total = add_past(facts, 6, 7, k, v);
  // Only batches and heads of attention_bias may be stretched.
  if (const Shape* bias = facts.shape(5); bias && bias->size() == 4) {
    facts.require((*bias)[0], ir::Relation::kStretches, q.batch);
    facts.require((*bias)[1], ir::Relation::kStretches, q.heads);
    facts.require_equal((*bias)[2], q.length);
    facts.require_equal((*bias)[3], total);
  }
  facts.set_shape(0, {q.batch, q.length, q.heads * v.size});
  facts.set_shape(1, {k.batch, k.heads, total, k.size});
  facts.set_shape(2, {v.batch, v.heads, total, v.size});
}

// Packed projection inside: weights are [in, q + k + v]. Past and present hold keys and values
// behind each other, [2, B, H, T, D].
void projecting_attention(NodeFacts& facts) {
  const Shape* input = facts.shape(0);
  const Shape* weights = facts.shape(1);
  if (!input || input->size() != 3 || !weights || weights->size() != 2) return;
  const auto sizes = facts.node().integers("qkv_hidden_sizes");
  const Dim hidden = sizes.size() == 3 ? Dim(sizes[2]) : floor_div((*weights)[1], 3);
  facts.require_equal(input->back(), weights->front());
  facts.require_shape(2, {(*weights)[1]});
  facts.set_shape(0, {(*input)[0], (*input)[1], hidden});
  const int64_t heads = facts.node().integer("num_heads", 0);
  const Shape* past = facts.shape(4);
  if (heads <= 0 || (facts.has_input(4) && (!past || past->size() != 5))) return;
  facts.require(heads, ir::Relation::kDivides, hidden);
  const Dim size = floor_div(hidden, heads);
  if (past) facts.require_shape(4, {2, (*input)[0], heads, (*past)[3], size});
  const Dim length = past ? (*past)[3] + (*input)[1] : (*input)[1];
  facts.set_shape(1, {2, (*input)[0], heads, length, size});
}

// q [T, H*D], or q, k and v side by side; the caches stay what they are.
void paged_attention(NodeFacts& facts) {
  const Shape* q = facts.shape(0);
  const int64_t heads = facts.node().integer("num_heads", 0);
  const int64_t kv_heads = facts.node().integer("kv_num_heads", 0);
  if (!q || q->size() != 2 || heads <= 0 || kv_heads <= 0) return;
  const int64_t packed = facts.has_input(1) ? heads : heads + 2 * kv_heads;
  facts.require(packed, ir::Relation::kDivides, (*q)[1]);
  facts.set_shape(0, {(*q)[0], floor_div((*q)[1], packed) * heads});
  const Shape* table = facts.shape(7);
  if (table && table->size() == 2) {
    facts.require_shape(5, {table->front() + 1});  // where sequences begin, and the end
    facts.require_shape(6, {table->front()});
  }
  facts.require_shape(10, {(*q)[0]});  // a slot for each token
  facts.require_shape(11, {heads});    // a sink for each head
  for (const size_t output : {1, 2}) {
    if (facts.shape(output + 2)) facts.set_shape(output, *facts.shape(output + 2));
  }
}

std::optional<Heads> heads_in_layout(const Shape* shape, const std::string& text, int64_t heads) {
  if (!shape) return std::nullopt;
  const Shape& s = *shape;
  const auto [layout, first_head, is_packed] = ir::HeadLayout::parse(text);
  if (layout == "bs(hd)" && s.size() == 3 && heads > 0) {
    return Heads{s[0], heads, s[1], floor_div(s[2], heads)};
  }
  if (s.size() != 4) return std::nullopt;
  if (layout == "bhsd") return Heads{s[0], s[1], s[2], s[3]};
  if (layout == "bshd") return Heads{s[0], is_packed ? Dim(heads) : s[2], s[1], s[3]};
  if (layout == "bhds") return Heads{s[0], s[1], s[3], s[2]};
  return std::nullopt;
}

void fused_attention(NodeFacts& facts) {
  const ir::Attention fused = ir::Attention::from(facts.node());
  const auto q = heads_in_layout(facts.shape(0), fused.q_layout, fused.q_heads);
  const auto v = heads_in_layout(facts.shape(2), fused.v_layout, fused.kv_heads);
  if (!q || !v) return;
  if (fused.y_layout == "bs(hd)") facts.set_shape(0, {q->batch, q->length, q->heads * v->size});
  if (fused.y_layout == "bshd") facts.set_shape(0, {q->batch, q->length, q->heads, v->size});
  if (fused.y_layout == "bhsd") facts.set_shape(0, {q->batch, q->heads, q->length, v->size});
}

constexpr ShapeRule kRules[] = {
    {"Attention", attention},
    {"com.microsoft::Attention", projecting_attention},
    // The rows of its caches are what a tensor says at Run, or as many as the model names.
    {"com.microsoft::GroupQueryAttention", group_query_attention, 0b110},
    {"com.microsoft::MultiHeadAttention", multi_head_attention},
    {"com.microsoft::PagedAttention", paged_attention},
    {ir::kAttention, fused_attention},
};

}  // namespace

std::span<const ShapeRule> attention_shape_rules() { return kRules; }

}  // namespace tenon
