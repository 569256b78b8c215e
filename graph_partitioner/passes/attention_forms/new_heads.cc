// What tenon::Attention does to new heads, where the graph does it in front of one:
//
//   x ──[norm of heads]──[rotary]──┬── q
//                                  └── [Concat(past, .)] ── k
//
// q and k are turned by the same angles, and k's Concat becomes the node's own cache, if v has one
// too. Norms are taken where rotary is inside or absent.
#include "graph_partitioner/passes/attention_forms/forms.h"
#include "graph_partitioner/passes/attention_forms/head_norm.h"
#include "graph_partitioner/passes/attention_forms/rotary.h"
#include "graph_partitioner/passes/attention_forms/rotation_trace.h"
#include "graph_partitioner/passes/attention_forms/tensor_trace.h"

namespace tenon::attention_forms {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::ValueId;

size_t token_axis(const std::string& layout) {
  return layout == "bhsd" ? 2 : layout == "bhds" ? 3 : 1;
}

// Concat(past, fresh) along the keys, read by this attention alone.
struct JoinedCache {
  ValueId past = kNoValue, fresh = kNoValue, joined = kNoValue;
  std::vector<int> sources;
};

std::optional<JoinedCache> joined_cache(Rewrite& r, ValueId value) {
  const Graph& graph = r.graph();
  const Node* node = graph.producer(value);
  if (node == nullptr || !node->is("Concat") || node->inputs.size() != 2) return std::nullopt;
  const auto shape = r.shape(value), past = r.shape(node->input(0));
  if (!shape || shape->size() != 4 || !past) return std::nullopt;
  if (decomposition::normal_axis(node->integer("axis", 0), shape) != 2) return std::nullopt;
  if (graph.consumers(value) != std::vector<ir::NodeId>{r.id()}) return std::nullopt;
  return JoinedCache{node->input(0), node->input(1), value, node->sources};
}

struct Caches {
  JoinedCache k, v;
};

// Positions count from the past on once it is the node's own: nothing else may ask for them.
std::optional<Caches> joined_caches(Rewrite& r, const ir::Attention& attention) {
  const bool counts_positions =
      attention.causal_top_left || attention.left_window >= 0 || attention.right_window >= 0;
  if (attention.past_k != kNoValue || attention.kv_lengths != kNoValue || counts_positions ||
      attention.k_layout != "bhsd" || attention.v_layout != "bhsd" || attention.k == attention.v) {
    return std::nullopt;
  }
  const auto k = joined_cache(r, attention.k), v = joined_cache(r, attention.v);
  if (!k || !v || (*r.shape(k->past))[2] != (*r.shape(v->past))[2]) return std::nullopt;
  return Caches{*k, *v};
}

// The layout that is read best, of the same elements.
void read_through_transposes(Rewrite& r, ValueId& value, std::string& layout) {
  const TensorTrace trace = trace_tensor(r, untraced(value, layout), {"bhsd", "bshd"});
  if (trace.scale != 1.0 || trace.part || trace.heads != 0 || !trace.rounding.empty()) return;
  r.absorb(trace.sources);
  value = trace.value;
  layout = trace.layout;
}

bool take_angles(Rewrite& r, const TracedRotation& rotation, const Dim& tokens,
                 ir::Attention& attention) {
  attention.interleaved = rotation.interleaved;
  if (!rotation.spelled) {
    attention.cos = rotation.cos;
    attention.sin = rotation.sin;
    if (rotation.positions == kNoValue) return (*r.shape(rotation.cos))[1] == tokens;
    attention.positions = spread_positions(r, rotation.positions, tokens);
    return (*r.shape(attention.positions))[1] == tokens;
  }
  const auto cos = token_angles(r, rotation.cos, rotation);
  const auto sin = token_angles(r, rotation.sin, rotation);
  if (!cos || !sin || r.shape(*cos) != r.shape(*sin)) return false;
  attention.cos = *cos;
  attention.sin = *sin;
  return (*r.shape(*cos))[1] == tokens;
}

struct Presents {
  ValueId k = kNoValue, v = kNoValue;
};

// The node's own output in place of a Concat's.
ValueId present_for(Rewrite& r, const JoinedCache& cache) {
  Graph& graph = r.graph();
  if (!graph.is_output(cache.joined)) return kNoValue;
  ir::Value value;
  value.name = graph.value(cache.joined).name;
  value.dtype = graph.value(cache.joined).dtype;
  value.shape = graph.value(cache.joined).shape;
  const ValueId present = graph.add_value(std::move(value));
  graph.value(present).producer = r.id();
  return present;
}

bool take_rotary(Rewrite& r, ir::Attention& attention, Presents& presents) {
  const auto caches = joined_caches(r, attention);
  const auto q = trace_rotation(r, attention.q, attention.q_layout);
  const auto k = trace_rotation(r, caches ? caches->k.fresh : attention.k, attention.k_layout);
  if (!q || !k || !q->same_angles(*k)) return false;
  if ((q->heads != 0 && q->heads != attention.q_heads) ||
      (k->heads != 0 && k->heads != attention.kv_heads)) {
    return false;
  }
  const Shape q_shape = *r.shape(q->x), k_shape = *r.shape(k->x);
  const Dim tokens = q_shape[token_axis(q->layout)];
  if (!(tokens == k_shape[token_axis(k->layout)])) return false;
  ir::Attention changed = attention;
  if (!take_angles(r, *q, tokens, changed)) return false;
  changed.q = q->x;
  changed.q_layout = q->layout;
  changed.k = k->x;
  changed.k_layout = k->layout;
  r.absorb(q->sources);
  r.absorb(k->sources);
  if (caches) {
    changed.past_k = caches->k.past;
    changed.past_v = caches->v.past;
    changed.v = caches->v.fresh;
    presents = {present_for(r, caches->k), present_for(r, caches->v)};
    for (const JoinedCache* cache : {&caches->k, &caches->v}) r.absorb(cache->sources);
    if (presents.k != kNoValue) r.graph().replace_uses(caches->k.joined, presents.k);
    if (presents.v != kNoValue) r.graph().replace_uses(caches->v.joined, presents.v);
    read_through_transposes(r, changed.v, changed.v_layout);
  }
  attention = changed;
  return true;
}

bool take_norms(Rewrite& r, ir::Attention& attention) {
  const auto q_shape = r.shape(attention.q), k_shape = r.shape(attention.k);
  const auto has_heads_last = [](const std::string& layout) { return layout == "bshd"; };
  if (attention.has_norm() || !q_shape || !k_shape || !has_heads_last(attention.q_layout) ||
      !has_heads_last(attention.k_layout)) {
    return false;
  }
  if ((*q_shape)[1] != (*k_shape)[1] || !q_shape->back().is_constant()) return false;
  const auto q = trace_head_norm(r, attention.q, q_shape->back().value());
  const auto k = trace_head_norm(r, attention.k, q_shape->back().value());
  if (!q || !k || q->epsilon != k->epsilon) return false;
  r.absorb(q->sources);
  r.absorb(k->sources);
  attention.q = r.emit.reshape(q->x, *q_shape);
  attention.k = r.emit.reshape(k->x, *k_shape);
  attention.q_norm = q->weight;
  attention.k_norm = k->weight;
  attention.norm_epsilon = q->epsilon;
  return true;
}

bool take_new_heads(Rewrite& r) {
  ir::Attention attention = ir::Attention::from(r.node());
  Presents presents{r.node().output(1), r.node().output(2)};
  const bool rotary = !attention.has_rotary() && take_rotary(r, attention, presents);
  if (rotary) {
    read_through_transposes(r, attention.q, attention.q_layout);
    read_through_transposes(r, attention.k, attention.k_layout);
  }
  const bool norms = take_norms(r, attention);
  if (rotary || norms) write(r, attention, {r.output(0), presents.k, presents.v});
  return rotary || norms;
}

constexpr NamedRewrite kRules[] = {{ir::kAttention, take_new_heads}};

}  // namespace

std::span<const NamedRewrite> new_head_forms() { return kRules; }

}  // namespace tenon::attention_forms
