#include "graph_partitioner/ir/fusions.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::ir {
namespace {

enum ScaledDotInput { kA, kB, kScaleA, kZeroA, kScaleB, kZeroB, kAlpha, kBias, kFirstExtra };
enum AttentionInput {
  kQ,
  kK,
  kV,
  kMask,
  kPastK,
  kPastV,
  kKvLengths,
  kSinks,
  kCos,
  kSin,
  kPositions,
  kQNorm,
  kKNorm,
  kKScale,
  kVScale
};

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// No sequence is that long: a window of more keys hides none, and kernels count places in i32.
constexpr int64_t kLongestWindow = int64_t{1} << 30;

int64_t window(const Node& node, std::string_view attribute) {
  const int64_t keys = node.integer(attribute, -1);
  return keys > kLongestWindow ? -1 : keys;
}

// Attributes at their default stay unwritten: text and dumps show what is special.
template <typename T>
void set_unless(Node& node, const std::string& attribute, const T& value, const T& otherwise) {
  if (value == otherwise) {
    node.attributes.erase(attribute);
  } else {
    node.attributes[attribute] = value;
  }
}

void set_flag(Node& node, const std::string& attribute, bool value, bool otherwise) {
  set_unless<int64_t>(node, attribute, value, otherwise);
}

void set_dtype(Node& node, const std::string& attribute, DType dtype) {
  const bool known = dtype != DType::kUndefined;
  set_unless(node, attribute, known ? std::string(name(dtype)) : std::string(), std::string());
}

DType dtype_attribute(const Node& node, std::string_view attribute) {
  const std::string written = node.text(attribute, "");
  if (written.empty()) return DType::kUndefined;
  const std::optional<DType> dtype = parse_dtype(written);
  if (!dtype) {
    throw UserError(
        fmt::format("node '{}' ({}): attribute '{}' must name an element type, got '{}'", node.name,
                    node.op, attribute, written));
  }
  return *dtype;
}

BlockScale scale_from(const Node& node, const std::string& side, int scale_input) {
  BlockScale scale;
  scale.scale = node.input(scale_input);
  scale.zero_point = node.input(scale_input + 1);
  scale.block = node.integer("block_" + side, 0);
  scale.per_channel = node.integer("per_channel_" + side, 1) != 0;
  scale.zero_offset = node.integer("zero_offset_" + side, 0);
  scale.scale_type = dtype_attribute(node, "scale_type_" + side);
  scale.rounded = dtype_attribute(node, "scale_rounded_" + side);
  scale.factor = node.number("scale_factor_" + side, 1.0f);
  return scale;
}

void write_scale(Node& node, const std::string& side, const BlockScale& scale) {
  set_unless<int64_t>(node, "block_" + side, scale.block, 0);
  set_flag(node, "per_channel_" + side, scale.per_channel, true);
  set_unless<int64_t>(node, "zero_offset_" + side, scale.zero_offset, 0);
  set_dtype(node, "scale_type_" + side, scale.scale_type);
  set_dtype(node, "scale_rounded_" + side, scale.rounded);
  set_unless(node, "scale_factor_" + side, scale.factor, 1.0f);
}

void set_inputs(Node& node, std::vector<ValueId> inputs) {
  while (!inputs.empty() && inputs.back() == kNoValue) inputs.pop_back();
  node.inputs = std::move(inputs);
}

void require_op(const Node& node, std::string_view op) {
  if (!node.is(op)) {
    throw InternalError(fmt::format("expected a {} node, got {} ('{}')", op, node.op, node.name));
  }
}

}  // namespace

ScaledDot ScaledDot::from(const Node& node) {
  require_op(node, kScaledDot);
  ScaledDot dot;
  dot.a = node.input(kA);
  dot.b = node.input(kB);
  dot.scale_a = scale_from(node, "a", kScaleA);
  dot.scale_b = scale_from(node, "b", kScaleB);
  dot.alpha = node.input(kAlpha);
  dot.alpha_constant = node.number("alpha", 1.0f);
  dot.bias = node.input(kBias);
  dot.a_k_first = node.integer("a_k_first", 0) != 0;
  dot.b_k_last = node.integer("b_k_last", 0) != 0;
  dot.b_type = dtype_attribute(node, "b_type");
  dot.b_dims = node.integers("b_dims");
  dot.accuracy_level = static_cast<int>(node.integer("accuracy_level", 0));
  dot.result = dtype_attribute(node, "result");
  for (size_t i = kFirstExtra; i < node.inputs.size(); ++i) dot.extra.push_back(node.inputs[i]);
  return dot;
}

void ScaledDot::write_to(Node& node) const {
  node.op = kScaledDot;
  node.since_version = 0;
  std::vector<ValueId> inputs = {
      a, b, scale_a.scale, scale_a.zero_point, scale_b.scale, scale_b.zero_point, alpha, bias};
  inputs.insert(inputs.end(), extra.begin(), extra.end());
  set_inputs(node, std::move(inputs));
  write_scale(node, "a", scale_a);
  write_scale(node, "b", scale_b);
  set_unless(node, "alpha", alpha_constant, 1.0f);
  set_flag(node, "a_k_first", a_k_first, false);
  set_flag(node, "b_k_last", b_k_last, false);
  set_dtype(node, "b_type", b_type);
  set_unless(node, "b_dims", b_dims, {});
  set_unless<int64_t>(node, "accuracy_level", accuracy_level, 0);
  set_dtype(node, "result", result);
}

MergedDots MergedDots::from(const Node& node) {
  require_op(node, kMergedDots);
  const Graph& body = *node.body;
  std::unordered_map<ValueId, ValueId> outside{{kNoValue, kNoValue}};
  for (size_t i = 0; i < node.inputs.size(); ++i) outside[body.inputs()[i]] = node.inputs[i];
  for (size_t i = 0; i < node.outputs.size(); ++i) outside[body.outputs()[i]] = node.outputs[i];
  MergedDots merged;
  for (const NodeId id : body.order()) {
    Node dot = body.node(id);
    for (ValueId& input : dot.inputs) input = outside.at(input);
    for (ValueId& output : dot.outputs) output = outside.at(output);
    if (is_loop(dot)) {
      merged.prologue = std::move(dot);
    } else {
      merged.dots.push_back(std::move(dot));
    }
  }
  return merged;
}

void MergedDots::write_to(Node& node, const Graph& graph) const {
  node.op = kMergedDots;
  node.since_version = 0;
  auto body = std::make_shared<Graph>();
  std::unordered_map<ValueId, ValueId> inside{{kNoValue, kNoValue}};
  const auto copy_of = [&](ValueId id) {
    Value copy;
    copy.name = graph.value(id).name;
    copy.dtype = graph.value(id).dtype;
    copy.shape = graph.value(id).shape;
    return copy;
  };
  std::vector<std::string> names;
  const auto add = [&](const Node& dot) {
    Node inner = dot;
    inner.sources.clear();
    for (ValueId& input : inner.inputs) {
      if (!inside.contains(input)) {
        node.inputs.push_back(input);
        inside[input] = body->add_input(copy_of(input));
      }
      input = inside.at(input);
    }
    const ValueId output = dot.output(0);
    inner.outputs = {inside[output] = body->add_value(copy_of(output))};
    node.outputs.push_back(output);
    node.sources = merge_sources(node.sources, dot.sources);
    const bool told = !names.empty() && names.back() == dot.name;
    if (!dot.name.empty() && !told) names.push_back(dot.name);
    body->add_output(inner.outputs[0]);
    body->add_node(std::move(inner));
  };
  if (prologue) add(*prologue);
  std::ranges::for_each(dots, add);
  node.name = fmt::format("{}", fmt::join(names, " + "));
  node.body = std::move(body);
}

Attention Attention::from(const Node& node) {
  require_op(node, kAttention);
  Attention attention;
  attention.q = node.input(kQ);
  attention.k = node.input(kK);
  attention.v = node.input(kV);
  attention.mask = node.input(kMask);
  attention.past_k = node.input(kPastK);
  attention.past_v = node.input(kPastV);
  attention.kv_lengths = node.input(kKvLengths);
  attention.sinks = node.input(kSinks);
  attention.cos = node.input(kCos);
  attention.sin = node.input(kSin);
  attention.positions = node.input(kPositions);
  attention.q_norm = node.input(kQNorm);
  attention.k_norm = node.input(kKNorm);
  attention.k_scale = node.input(kKScale);
  attention.v_scale = node.input(kVScale);
  attention.cache_type = dtype_attribute(node, "cache_type");
  attention.q_heads = node.integer("q_heads", 0);
  attention.kv_heads = node.integer("kv_heads", 0);
  attention.q_layout = node.text("q_layout", "bhsd");
  attention.k_layout = node.text("k_layout", "bhsd");
  attention.v_layout = node.text("v_layout", "bhsd");
  attention.y_layout = node.text("y_layout", "bhsd");
  attention.scale = node.number("scale", 0.0f);
  attention.softcap = node.number("softcap", 0.0f);
  attention.probability_scale = node.number("probability_scale", 0.0f);
  if (node.has("probability_codes")) {
    attention.probability_codes = dtype_attribute(node, "probability_codes");
  }
  if (node.has("probability_type")) {
    attention.probability_type = dtype_attribute(node, "probability_type");
  }
  attention.causal = node.integer("causal", 0) != 0;
  attention.causal_top_left = node.integer("causal_top_left", 0) != 0;
  attention.left_window = window(node, "left_window");
  attention.right_window = window(node, "right_window");
  attention.mask_fill = node.number("mask_fill", kHidden);
  attention.nan_without_keys = node.integer("nan_without_keys", 0) != 0;
  attention.interleaved = node.integer("interleaved", 0) != 0;
  attention.norm_epsilon = node.number("norm_epsilon", 1e-6f);
  attention.least_length = node.integer("least_length", -1);
  return attention;
}

void Attention::write_to(Node& node) const {
  node.op = kAttention;
  node.since_version = 0;
  set_inputs(node, {q, k, v, mask, past_k, past_v, kv_lengths, sinks, cos, sin, positions, q_norm,
                    k_norm, k_scale, v_scale});
  set_dtype(node, "cache_type", cache_type);
  set_unless<int64_t>(node, "q_heads", q_heads, 0);
  set_unless<int64_t>(node, "kv_heads", kv_heads, 0);
  const std::string default_layout = "bhsd";
  set_unless(node, "q_layout", q_layout, default_layout);
  set_unless(node, "k_layout", k_layout, default_layout);
  set_unless(node, "v_layout", v_layout, default_layout);
  set_unless(node, "y_layout", y_layout, default_layout);
  set_unless(node, "scale", scale, 0.0f);
  set_unless(node, "softcap", softcap, 0.0f);
  set_unless(node, "probability_scale", probability_scale, 0.0f);
  const auto set_dtype_unless = [&](const char* attribute, DType dtype, DType otherwise) {
    set_dtype(node, attribute, dtype == otherwise ? DType::kUndefined : dtype);
  };
  set_dtype_unless("probability_codes", probability_codes, DType::kF8E4M3FN);
  set_dtype_unless("probability_type", probability_type, DType::kF32);
  set_flag(node, "causal", causal, false);
  set_flag(node, "causal_top_left", causal_top_left, false);
  set_unless<int64_t>(node, "left_window", left_window, -1);
  set_unless<int64_t>(node, "right_window", right_window, -1);
  set_unless(node, "mask_fill", mask_fill, kHidden);
  set_flag(node, "nan_without_keys", nan_without_keys, false);
  set_flag(node, "interleaved", interleaved, false);
  set_unless(node, "norm_epsilon", norm_epsilon, 1e-6f);
  set_unless<int64_t>(node, "least_length", least_length, -1);
}

bool is_loop(const Node& node) { return node.is(kLoop); }

}  // namespace tenon::ir
