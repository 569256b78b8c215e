#include "graph_partitioner/passes/attention_forms/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/convert.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/attention_forms/forms.h"
#include "graph_partitioner/pattern.h"

namespace tenon::attention_forms {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::ValueId;

// Added to a score this number leaves nothing of it in f32: adding it is putting it there.
constexpr double kSwallows = -1e30;

// From the softmax down, a later stage may not be followed by an earlier one.
enum class Stage { kMask, kSoftcap, kScale };

// `casts`: the types that the value is rounded to on its way to the softmax, last one first.
struct Path {
  Stage stage = Stage::kMask;
  std::vector<DType> casts;
};

std::optional<Scores> trace(const Graph& graph, ValueId value, Path path, Scores scores);

std::optional<Scores> trace_sum(const Graph& graph, const Node& node, const Path& path,
                                const Scores& scores) {
  for (const size_t side : {0u, 1u}) {
    if (auto found = trace(graph, node.input(side), path, scores)) {
      found->added.push_back({node.input(1 - side), found->hidden.size()});
      return found;
    }
  }
  return std::nullopt;
}

double rounded(double fill, const std::vector<DType>& casts) {
  for (auto type = casts.rbegin(); type != casts.rend(); ++type) {
    fill = decode(*type, encode(*type, fill));
  }
  return fill;
}

std::optional<Scores> trace_where(const Graph& graph, const Node& node, const Path& path,
                                  const Scores& scores) {
  for (const size_t side : {1u, 2u}) {
    const auto fill = scalar_constant(graph, node.input(3 - side));
    if (!fill || std::isnan(*fill)) continue;
    auto found = trace(graph, node.input(side), path, scores);
    if (!found) continue;
    const DType dtype = graph.value(node.output(0)).dtype;
    found->hidden.push_back({node.input(0), side == 2, rounded(*fill, path.casts), dtype});
    return found;
  }
  return std::nullopt;
}

std::optional<Scores> trace_softcap(const Graph& graph, ValueId value, Scores scores) {
  const Pattern divided =
      op("Mul", {op("Tanh", {op("Div", {any("x"), constant("cap")})}), constant("cap")});
  const Pattern multiplied =
      op("Mul", {op("Tanh", {op("Mul", {any("x"), constant("inverse")})}), constant("cap")});
  Match match;
  if (!divided(graph, value, match) && !multiplied(graph, value, match)) return std::nullopt;
  const double cap = *scalar_constant(graph, match["cap"]);
  if (const auto inverse = scalar_constant(graph, match["inverse"])) {
    // f32 or f16 constants: 1/cap as well as they can say it.
    if (std::abs(*inverse * cap - 1.0) > 1e-3) return std::nullopt;
  }
  if (cap <= 0.0) return std::nullopt;
  scores.softcap = cap;
  scores.sources = ir::merge_sources(scores.sources, match.sources);
  return trace(graph, match["x"], {Stage::kScale, {}}, std::move(scores));
}

std::optional<Scores> trace_scale(const Graph& graph, const Node& node, Scores scores) {
  const bool divides = node.is("Div");
  for (const size_t side : {1u, 0u}) {
    const auto number = scalar_constant(graph, node.input(side));
    if (!number || (divides && side == 0)) continue;
    scores.scale = divides ? scores.scale / *number : scores.scale * *number;
    return trace(graph, node.input(1 - side), {Stage::kScale, {}}, std::move(scores));
  }
  return std::nullopt;
}

std::optional<Scores> trace(const Graph& graph, ValueId value, Path path, Scores scores) {
  const Node* node = graph.producer(value);
  if (node == nullptr || !graph.has_one_use(value)) return std::nullopt;
  if (node->is(ir::kScaledDot)) {
    scores.dot = graph.value(value).producer;
    return scores;
  }
  scores.sources = ir::merge_sources(scores.sources, node->sources);
  if (node->is("Cast")) {
    path.casts.push_back(graph.value(value).dtype);
    return trace(graph, node->input(0), std::move(path), std::move(scores));
  }
  if (node->is("Add") && path.stage == Stage::kMask) return trace_sum(graph, *node, path, scores);
  if (node->is("Where") && path.stage == Stage::kMask) {
    return trace_where(graph, *node, path, scores);
  }
  if (!node->is("Mul") && !node->is("Div")) return std::nullopt;
  if (path.stage != Stage::kScale) {
    if (auto capped = trace_softcap(graph, value, scores)) return capped;
  }
  return trace_scale(graph, *node, std::move(scores));
}

bool has_one_fill(const Scores& scores) {
  return std::ranges::all_of(scores.hidden, [&](const Hidden& hidden) {
    return hidden.fill == scores.hidden.front().fill;
  });
}

bool swallow_scores(const Scores& scores) {
  return std::ranges::all_of(scores.hidden,
                             [](const Hidden& hidden) { return hidden.fill <= kSwallows; });
}

// Scores are replaced by one number, after all that is added to them.
bool is_select(const Scores& scores) {
  return !scores.hidden.empty() && has_one_fill(scores) &&
         std::ranges::all_of(scores.added, [](const Added& added) { return added.after == 0; });
}

ValueId kept(Rewrite& r, const Hidden& hidden) {
  return hidden.where_true ? r.emit.unary("Not", hidden.condition) : hidden.condition;
}

ValueId kept_by_all(Rewrite& r, const Scores& scores) {
  ValueId all = kNoValue;
  for (const Hidden& hidden : scores.hidden) {
    const ValueId own = kept(r, hidden);
    all = all == kNoValue ? own : r.emit.compare("And", all, own);
  }
  return all;
}

// Masks on either side of a Cast may differ in their type.
ValueId joined(Rewrite& r, ValueId a, ValueId b) {
  if (a == kNoValue || r.dtype(a) == r.dtype(b)) return add_masks(r, a, b);
  const ValueId wide = r.emit.cast(a, DType::kF32);
  return add_masks(r, wide, r.emit.cast(b, DType::kF32));
}

ValueId sum_before_where(Rewrite& r, const Scores& scores) {
  ValueId sum = kNoValue;
  for (const Added& added : scores.added) sum = joined(r, sum, added.mask);
  return sum;
}

// What is added, and NaN where the fill goes. A NaN that is added makes its row NaN; so does +inf.
ValueId sum_or_fill(Rewrite& r, const Scores& scores) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const ValueId sum = sum_before_where(r, scores);
  const DType dtype = r.dtype(sum);
  const ValueId infinite = r.emit.scalar(dtype, std::numeric_limits<double>::infinity());
  const ValueId number = r.emit.where(r.emit.compare("Equal", sum, sum), sum, infinite);
  const ValueId keep = kept_by_all(r, scores);
  return r.emit.where(keep, number, r.emit.scalar(dtype, kNaN));
}

// The sum of what is added, with each fill where its Where puts it.
ValueId summed(Rewrite& r, const Scores& scores) {
  ValueId mask = kNoValue;
  auto added = scores.added.begin();
  for (size_t wheres = 0;; ++wheres) {
    for (; added != scores.added.end() && added->after == wheres; ++added) {
      mask = joined(r, mask, added->mask);
    }
    if (wheres == scores.hidden.size()) return mask;
    const Hidden& hidden = scores.hidden[wheres];
    const DType own =
        mask == kNoValue || r.dtype(mask) == hidden.dtype ? hidden.dtype : DType::kF32;
    const ValueId otherwise = mask == kNoValue ? r.emit.scalar(own, 0.0) : r.emit.cast(mask, own);
    const ValueId fill = r.emit.scalar(own, hidden.fill);
    mask = hidden.where_true ? r.emit.where(hidden.condition, fill, otherwise)
                             : r.emit.where(hidden.condition, otherwise, fill);
  }
}

}  // namespace

std::optional<Scores> trace_scores(const Graph& graph, ValueId value) {
  auto scores = trace(graph, value, {}, {});
  const bool has_mask = scores && (is_select(*scores) || swallow_scores(*scores));
  return has_mask ? scores : std::nullopt;
}

void write_mask(Rewrite& r, const Scores& scores, ir::Attention& attention) {
  const bool selects = is_select(scores);
  if (selects) attention.mask_fill = static_cast<float>(scores.hidden.front().fill);
  if (selects && scores.added.empty()) {
    attention.mask = kept_by_all(r, scores);
  } else if (selects && std::isfinite(attention.mask_fill)) {
    attention.mask = sum_or_fill(r, scores);
  } else {
    attention.mask = summed(r, scores);
  }
}

}  // namespace tenon::attention_forms
