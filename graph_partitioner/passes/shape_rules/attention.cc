// Attention in each spelling.
#include <string>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/head_layout.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

struct Heads {
  Dim batch, heads, length, size;
};

// q, k or v of ONNX Attention: [B, H, S, D] or [B, S, H*D].
std::optional<Heads> heads_of(const Shape* shape, int64_t heads) {
  if (!shape) return std::nullopt;
  const Shape& s = *shape;
  if (s.size() == 4) return Heads{s[0], s[1], s[2], s[3]};
  if (s.size() != 3 || heads <= 0) return std::nullopt;
  return Heads{s[0], heads, s[1], floor_div(s[2], heads)};
}

// Y, present_key, present_value, qk_matmul_output.
void attention(NodeFacts& facts) {
  const auto q = heads_of(facts.shape(0), facts.node().integer("q_num_heads", 0));
  const auto k = heads_of(facts.shape(1), facts.node().integer("kv_num_heads", 0));
  const auto v = heads_of(facts.shape(2), facts.node().integer("kv_num_heads", 0));
  if (!q || !k || !v) return;
  if (facts.shape(0)->size() == 4) {
    facts.set_shape(0, {q->batch, q->heads, q->length, v->size});
  } else {
    facts.set_shape(0, {q->batch, q->length, q->heads * v->size});
  }
  Dim past = 0;
  if (facts.has_input(4)) {
    if (!facts.shape(4) || facts.shape(4)->size() != 4) return;
    past = (*facts.shape(4))[2];
  }
  const Dim total = past + k->length;
  facts.set_shape(1, {k->batch, k->heads, total, k->size});
  facts.set_shape(2, {v->batch, v->heads, total, v->size});
  facts.set_shape(3, {q->batch, q->heads, q->length, total});
}

// The caches' length depends on the buffers that the caller binds: it stays as given.
void group_query_attention(NodeFacts& facts) {
  const Shape* q = facts.shape(0);
  if (!q || q->size() != 3) return;
  const int64_t heads = facts.node().integer("num_heads", 0);
  const int64_t kv_heads = facts.node().integer("kv_num_heads", 0);
  if (facts.has_input(1)) return facts.set_shape(0, *q);
  if (heads <= 0 || kv_heads <= 0) return;
  const Dim head_size = floor_div((*q)[2], heads + 2 * kv_heads);
  facts.set_shape(0, {(*q)[0], (*q)[1], head_size * heads});
}

void multi_head_attention(NodeFacts& facts) {
  const Shape* q = facts.shape(0);
  const Shape* v = facts.shape(2);
  if (!q || q->size() != 3 || !v) return;
  if (v->size() == 3) return facts.set_shape(0, {(*q)[0], (*q)[1], (*v)[2]});
  // Cross attention: v is [B, H, S, D].
  if (v->size() == 4) facts.set_shape(0, {(*q)[0], (*q)[1], (*v)[1] * (*v)[3]});
}

// Packed projection inside: weights are [in, q + k + v].
void projecting_attention(NodeFacts& facts) {
  const Shape* input = facts.shape(0);
  const Shape* weights = facts.shape(1);
  if (!input || input->size() != 3 || !weights || weights->size() != 2) return;
  const auto sizes = facts.node().integers("qkv_hidden_sizes");
  const Dim hidden = sizes.size() == 3 ? Dim(sizes[2]) : floor_div((*weights)[1], 3);
  facts.set_shape(0, {(*input)[0], (*input)[1], hidden});
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
    {"com.microsoft::GroupQueryAttention", group_query_attention},
    {"com.microsoft::MultiHeadAttention", multi_head_attention},
    {ir::kAttention, fused_attention},
};

}  // namespace

std::span<const ShapeRule> attention_shape_rules() { return kRules; }

}  // namespace tenon
