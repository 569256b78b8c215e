#include "kernels/llvm/attention/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "graph_partitioner/ir/head_layout.h"
#include "kernels/planning/roofline.h"

namespace tenon::kernels {
namespace {

struct HeadDims {
  Dim batch, rows, columns;
  HeadStrides strides;
};

// Sizes and strides of a tensor that holds `heads` heads in this layout.
std::optional<HeadDims> head_dims(const ir::Value& value, std::string_view text, int64_t heads) {
  if (!value.shape) return std::nullopt;
  const Shape& s = *value.shape;
  const auto [layout, first_head, is_packed] = ir::HeadLayout::parse(text);
  HeadDims dims;
  if (layout == "bs(hd)") {
    if (s.size() != 3 || !s[2].is_constant() || s[2].value() % heads != 0) return std::nullopt;
    dims = {s[0], s[1], s[2].value() / heads, {}};
    dims.strides = {s[1] * s[2], dims.columns, s[2], 1};
    return dims;
  }
  if (s.size() != 4) return std::nullopt;
  if (layout == "bhsd") {
    dims = {s[0], s[2], s[3], {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}};
  } else if (layout == "bshd") {
    dims = {s[0], s[1], s[3], {s[1] * s[2] * s[3], s[3], s[2] * s[3], 1}};
  } else if (layout == "bhds") {
    dims = {s[0], s[3], s[2], {s[1] * s[2] * s[3], s[2] * s[3], 1, s[3]}};
  } else {
    return std::nullopt;
  }
  if (is_packed) {
    const bool holds = layout == "bshd" && s[2].is_constant() && first_head >= 0 &&
                       first_head + heads <= s[2].value();
    if (!holds) return std::nullopt;
    dims.strides.offset = dims.strides.head * first_head;
  }
  return dims;
}

Shape masked_shape(const AttentionProblem& problem) {
  return {problem.batch, Dim(problem.attention.q_heads), problem.queries, problem.all_keys};
}

Support describe_mask(const ir::Graph& graph, AttentionProblem& problem) {
  if (problem.attention.mask == ir::kNoValue) return Support::yes();
  const ir::Value& mask = graph.value(problem.attention.mask);
  problem.mask_type = mask.dtype;
  if (mask.dtype != DType::kBool && mask.dtype != DType::kF32 && mask.dtype != DType::kF16 &&
      mask.dtype != DType::kBF16) {
    return Support::no(fmt::format("a mask of type {} is not supported", name(mask.dtype)));
  }
  if (!mask.shape || mask.shape->size() > 4)
    return Support::no("the mask's rank is unknown or above 4");
  const Shape strides = contiguous_strides(*mask.shape);
  const Shape wanted = masked_shape(problem);
  Dim* const targets[] = {&problem.mask_batch, &problem.mask_head, &problem.mask_query,
                          &problem.mask_key};
  const size_t shift = 4 - mask.shape->size();
  for (size_t axis = 0; axis < mask.shape->size(); ++axis) {
    const Dim& dim = (*mask.shape)[axis];
    if (dim.is_constant() && wanted[axis + shift].is_constant() && !dim.is(1) &&
        !(dim == wanted[axis + shift])) {
      return Support::no(
          fmt::format("the mask {} does not broadcast to {}", text(*mask.shape), text(wanted)));
    }
    *targets[axis + shift] = stride_unless_one(dim, strides[axis]);
  }
  return Support::yes();
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

Support describe_positions(const ir::Graph& graph, AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  if (attention.positions == ir::kNoValue) {
    if (attention.kv_lengths != ir::kNoValue) return Support::yes();
    return Support::no("rotary embedding with neither position_ids nor sequence lengths");
  }
  const ir::Value& positions = graph.value(attention.positions);
  if (positions.dtype != DType::kI32 && positions.dtype != DType::kI64) {
    return Support::no(
        fmt::format("position_ids of type {} are not supported", name(positions.dtype)));
  }
  if (!positions.shape || positions.shape->size() != 2 ||
      !((*positions.shape)[1] == problem.keys)) {
    return Support::no("position_ids are not [batch, sequence]");
  }
  problem.position_batch = stride_unless_one((*positions.shape)[0], problem.keys);
  return Support::yes();
}

Support describe_rotary(const ir::Graph& graph, AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  if (!attention.has_rotary()) return Support::yes();
  const ir::Value &cos = graph.value(attention.cos), &sin = graph.value(attention.sin);
  if (!is_float(cos.dtype) || !is_float(sin.dtype)) {
    return Support::no(fmt::format("a cos/sin cache of type {} is not supported", name(cos.dtype)));
  }
  if (!cos.shape || !sin.shape || *cos.shape != *sin.shape || cos.shape->empty() ||
      !cos.shape->back().is_constant()) {
    return Support::no("cos and sin caches have different or unknown shapes");
  }
  const Shape& shape = *cos.shape;
  problem.angles = shape.back().value();
  problem.has_angle_table = shape.size() == 2;
  if (2 * problem.angles > problem.depth) {
    return Support::no(fmt::format("a cos/sin cache of width {} is too wide for head_size {}",
                                   problem.angles, problem.depth));
  }
  if (problem.has_angle_table) {
    problem.angle_rows = shape[0];
    return describe_positions(graph, problem);
  }
  if (shape.size() != 3 || !(shape[1] == problem.keys)) {
    return Support::no(fmt::format("a cos/sin cache {} without a row per token", text(shape)));
  }
  problem.angle_batch = stride_unless_one(shape[0], problem.keys * problem.angles);
  return Support::yes();
}

// Types that caches of codes are stored in.
DType stored_type(DType codes) { return codes == DType::kI4 ? DType::kU8 : codes; }

Support describe_cache(const ir::Graph& graph, const AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  const auto fits = [&](ir::ValueId past, ir::ValueId fresh, ir::ValueId scale, int64_t depth) {
    if (past == ir::kNoValue) return Support::yes();
    const DType type = graph.value(past).dtype;
    if (!attention.has_codes()) {
      if (type == graph.value(fresh).dtype) return Support::yes();
      return Support::no("past and new KV have different types");
    }
    if (type != stored_type(attention.cache_type) ||
        (attention.cache_type == DType::kI4 && depth % 2 != 0)) {
      return Support::no(
          fmt::format("{} KV with head_size {} in a cache of type {} is not supported",
                      name(attention.cache_type), depth, name(type)));
    }
    const ir::Value* const factor = scale == ir::kNoValue ? nullptr : &graph.value(scale);
    if (factor == nullptr || factor->dtype != DType::kF32 || !factor->shape) {
      return Support::no("a quantised KV cache without a float32 scale");
    }
    const Dim count = element_count(*factor->shape);
    if (!count.is(1) && !count.is(attention.kv_heads * depth)) {
      return Support::no(
          fmt::format("{} KV scales for {} heads of {}", count.text(), attention.kv_heads, depth));
    }
    return Support::yes();
  };
  if (attention.has_codes() && !problem.has_past())
    return Support::no("quantised KV without a cache");
  const Support keys = fits(attention.past_k, attention.k, attention.k_scale, problem.depth);
  if (!keys) return keys;
  return fits(attention.past_v, attention.v, attention.v_scale, problem.value_depth);
}

// Norm and rotary work on the new tokens: as many queries as keys.
Support describe_new_heads(const ir::Graph& graph, AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  if (!attention.has_rotary() && !attention.has_norm()) return Support::yes();
  if (!(problem.queries == problem.keys)) {
    return Support::no("rotary embedding with different key and query sequence lengths");
  }
  for (const ir::ValueId norm : {attention.q_norm, attention.k_norm}) {
    if (norm == ir::kNoValue) continue;
    const ir::Value& weight = graph.value(norm);
    if (!is_float(weight.dtype) || !weight.shape || *weight.shape != Shape{problem.depth}) {
      return Support::no("a QK norm whose weight does not have head_size elements");
    }
  }
  return describe_rotary(graph, problem);
}

std::vector<SizeCheck> mask_sizes(const ir::Graph& graph, const AttentionProblem& problem,
                                  bool with_keys) {
  std::vector<SizeCheck> checks;
  if (problem.attention.mask == ir::kNoValue) return checks;
  const Shape& mask = *graph.value(problem.attention.mask).shape;
  const Shape wanted = masked_shape(problem);
  const size_t shift = wanted.size() - mask.size();
  for (size_t axis = 0; axis < mask.size(); ++axis) {
    const bool is_keys = axis + 1 == mask.size();
    if (mask[axis].is(1) || mask[axis] == wanted[axis + shift] || (is_keys && !with_keys)) continue;
    checks.push_back({mask[axis], ir::Relation::kStretches, wanted[axis + shift]});
  }
  return checks;
}

// Kernels read every operand by the sizes of q, k and the first cache: the others must have the
// same, and a cache that keeps its size must have room for the new keys.
std::vector<SizeCheck> operand_sizes(const ir::Graph& graph, const AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  std::vector<SizeCheck> checks;
  const auto require_equal = [&](const Dim& size, const Dim& wanted) {
    if (!(size == wanted)) checks.push_back({size, ir::Relation::kEqual, wanted});
  };
  const auto require = [&](ir::ValueId id, const Shape& wanted) {
    if (id == ir::kNoValue || !graph.value(id).shape) return;
    const Shape& shape = *graph.value(id).shape;
    for (size_t axis = 0; axis < std::min(shape.size(), wanted.size()); ++axis) {
      require_equal(shape[axis], wanted[axis]);
    }
  };
  const auto k = head_dims(graph.value(attention.k), attention.k_layout, attention.kv_heads);
  const auto v = head_dims(graph.value(attention.v), attention.v_layout, attention.kv_heads);
  require_equal(k->columns, problem.depth);
  require_equal(k->batch, problem.batch);
  require_equal(v->batch, problem.batch);
  require_equal(v->rows, problem.keys);
  require(attention.kv_lengths, {problem.batch});
  const Dim heads = attention.kv_heads;
  const auto width = [&](int64_t depth) { return Dim(problem.cache_width(depth)); };
  require(attention.past_k, {problem.batch, heads, problem.past, width(problem.depth)});
  require(attention.past_v, {problem.batch, heads, problem.past, width(problem.value_depth)});
  if (problem.has_past() && !(problem.all_keys == problem.past + problem.keys)) {
    checks.push_back({problem.keys, ir::Relation::kAtMost, problem.all_keys});
  }
  return checks;
}

// What can be said before sizes are known.
Support sizes_agree(const std::vector<SizeCheck>& checks) {
  for (const SizeCheck& check : checks) {
    if (ir::decide(check.left, check.relation, check.right) != false) continue;
    return Support::no(
        fmt::format("operand sizes {} and {} do not match", check.left.text(), check.right.text()));
  }
  return Support::yes();
}

}  // namespace

std::string AttentionProblem::text() const {
  std::string result = fmt::format("{} heads of {}", attention.q_heads, depth);
  if (attention.kv_heads != attention.q_heads) result += fmt::format(" on {}", attention.kv_heads);
  result += fmt::format(", queries {}, keys {}", queries.text(), all_keys.text());
  if (attention.mask != ir::kNoValue) result += ", mask";
  if (attention.causal || attention.causal_top_left) result += ", causal";
  if (attention.has_codes()) result += fmt::format(", {} in the cache", name(attention.cache_type));
  if (attention.rounds_probabilities()) {
    result += fmt::format(", probabilities in {}", name(attention.probability_codes));
  }
  if (attention.has_norm()) result += ", norm";
  if (attention.has_rotary()) result += ", rotary";
  return result;
}

DescribedAttention describe_attention(const ir::Graph& graph, const ir::Node& node) {
  DescribedAttention result;
  AttentionProblem& problem = result.problem;
  problem.attention = ir::Attention::from(node);
  const ir::Attention& attention = problem.attention;
  const auto refuse = [&](std::string why) {
    result.support = Support::no(std::move(why));
    return result;
  };
  if (attention.q_heads <= 0 || attention.kv_heads <= 0 ||
      attention.q_heads % attention.kv_heads != 0) {
    return refuse(fmt::format("{} query heads are not a multiple of {} KV heads", attention.q_heads,
                              attention.kv_heads));
  }
  const auto q = head_dims(graph.value(attention.q), attention.q_layout, attention.q_heads);
  const auto k = head_dims(graph.value(attention.k), attention.k_layout, attention.kv_heads);
  const auto v = head_dims(graph.value(attention.v), attention.v_layout, attention.kv_heads);
  const auto y = head_dims(graph.value(node.outputs[0]), attention.y_layout, attention.q_heads);
  if (!q || !k || !v || !y) return refuse("an operand's rank does not match its layout");
  if (!q->columns.is_constant() || !v->columns.is_constant()) {
    return refuse("head_size is not static");
  }
  for (const ir::ValueId id : {attention.q, attention.k, attention.v, node.outputs[0]}) {
    if (!is_float(graph.value(id).dtype)) {
      return refuse(fmt::format("attention in {} is not supported", name(graph.value(id).dtype)));
    }
  }
  problem.batch = q->batch;
  problem.queries = q->rows;
  problem.keys = k->rows;
  problem.all_keys = problem.keys;
  problem.depth = q->columns.value();
  problem.value_depth = v->columns.value();
  problem.q = q->strides;
  problem.k = k->strides;
  problem.v = v->strides;
  problem.y = y->strides;
  problem.scale =
      attention.scale != 0 ? attention.scale : 1.0f / std::sqrt(static_cast<float>(problem.depth));
  if (problem.has_past()) {
    const ir::Value& past = graph.value(attention.past_k);
    if (!past.shape || past.shape->size() != 4) return refuse("the KV cache is not of rank 4");
    problem.past = (*past.shape)[2];
    problem.all_keys = problem.past + problem.keys;
    // A cache that is written in place keeps its size.
    if (node.output(1) != ir::kNoValue && graph.value(node.output(1)).shape) {
      problem.all_keys = (*graph.value(node.output(1)).shape)[2];
    }
  }
  result.support = describe_cache(graph, problem);
  if (result.support) result.support = sizes_agree(operand_sizes(graph, problem));
  if (result.support) result.support = describe_new_heads(graph, problem);
  if (result.support) result.support = describe_mask(graph, problem);
  return result;
}

Dim AttentionProblem::flops() const {
  std::vector<std::string> of_rows;
  queries.collect_symbols(of_rows);
  const Dim seen = all_keys.substitute([&](std::string_view symbol) -> std::optional<Dim> {
    if (std::ranges::find(of_rows, symbol) != of_rows.end()) return std::nullopt;
    return Dim(kOpenKeys);
  });
  const bool is_causal = attention.causal || attention.causal_top_left;
  const Dim twice = is_causal ? max(2 * seen - queries, seen) : 2 * seen;
  return batch * attention.q_heads * (depth + value_depth) * queries * twice;
}

Dim has_few_queries(const AttentionProblem& problem, int64_t most) {
  if (most == 0) return 0;
  const Dim blocks = ceil_div(problem.queries, most);
  return max(Dim(0), min(Dim(1), 2 - blocks)) * min(blocks, 1);
}

std::vector<SizeCheck> size_checks(const ir::Graph& graph, const AttentionProblem& problem,
                                   bool mask_has_all_keys) {
  // Keys that a mask does not speak of are hidden, which its fill does not do.
  const bool fills = std::isfinite(problem.attention.mask_fill);
  std::vector<SizeCheck> checks = mask_sizes(graph, problem, mask_has_all_keys || fills);
  const ir::Attention& attention = problem.attention;
  const auto require_batch = [&](ir::ValueId id) {
    if (id == ir::kNoValue) return;
    checks.push_back({graph.value(id).shape->front(), ir::Relation::kStretches, problem.batch});
  };
  if (attention.has_rotary() && !problem.has_angle_table) require_batch(attention.cos);
  require_batch(attention.positions);
  for (const SizeCheck& check : operand_sizes(graph, problem)) checks.push_back(check);
  return checks;
}

std::vector<IndexCheck> length_checks(const AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  const bool tells_positions =
      attention.has_rotary() && problem.has_angle_table && attention.positions == ir::kNoValue;
  const bool is_checked = attention.kv_lengths != ir::kNoValue && attention.least_length >= 0;
  if (!is_checked && !tells_positions) return {};
  if (!is_checked) return {{.value = attention.kv_lengths, .bound = problem.angle_rows + 1}};
  Dim most = tells_positions ? min(problem.all_keys, problem.angle_rows) : problem.all_keys;
  // Present may be longer than past and the new keys are together: nobody has given the rest.
  if (problem.has_past()) most = min(most, problem.past + problem.keys);
  return {{.value = attention.kv_lengths,
           .bound = most + 1,
           .from_end = false,
           .least = attention.least_length}};
}

void check_lengths(const AttentionProblem& problem, Lowered& lowered) {
  if (lowered.launches.empty()) return;
  for (const IndexCheck& check : length_checks(problem)) {
    lowered.launches.front().checks.push_back(check);
  }
}

}  // namespace tenon::kernels
