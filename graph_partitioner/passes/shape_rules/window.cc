// Sliding windows (convolution, pooling) and recurrent layers.
#include <string>

#include "graph_partitioner/ir/transposed_window.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

// Attributes of a window over `rank` spatial axes, defaults filled in.
struct Window {
  std::vector<int64_t> kernel, strides, dilations, pads_begin, pads_end;
  std::string auto_pad;
  bool ceils = false;  // the last window may reach over the end
};

std::optional<Window> window_of(const ir::Node& node, std::vector<int64_t> kernel) {
  const size_t rank = kernel.size();
  Window window;
  window.kernel = std::move(kernel);
  window.strides = node.integers("strides");
  window.dilations = node.integers("dilations");
  window.auto_pad = node.text("auto_pad", "NOTSET");
  window.ceils = node.integer("ceil_mode", 0) != 0;
  std::vector<int64_t> pads = node.integers("pads");
  if (window.strides.empty()) window.strides.assign(rank, 1);
  if (window.dilations.empty()) window.dilations.assign(rank, 1);
  if (pads.empty() || window.auto_pad == "VALID") pads.assign(2 * rank, 0);
  if (window.strides.size() != rank || window.dilations.size() != rank || pads.size() != 2 * rank) {
    return std::nullopt;
  }
  for (int64_t stride : window.strides) {
    if (stride <= 0) return std::nullopt;
  }
  window.pads_begin.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(rank));
  window.pads_end.assign(pads.begin() + static_cast<std::ptrdiff_t>(rank), pads.end());
  return window;
}

bool pads_as_needed(const Window& window) {
  return window.auto_pad == "SAME_UPPER" || window.auto_pad == "SAME_LOWER";
}

// How far behind the first window one could begin that still lies inside x and its pads; negative
// where not even the first one does.
Dim way_of(const Dim& dim, const Window& window, size_t axis) {
  const int64_t reach = window.dilations[axis] * (window.kernel[axis] - 1) + 1;
  return dim + (window.pads_begin[axis] + window.pads_end[axis] - reach);
}

// The runtime wants at least one whole window.
Dim convolved_along(NodeFacts& facts, const Dim& dim, const Window& window, size_t axis) {
  if (pads_as_needed(window)) {
    facts.require(1, ir::Relation::kAtMost, dim);
    return ceil_div(dim, window.strides[axis]);
  }
  const Dim way = way_of(dim, window, axis);
  facts.require(0, ir::Relation::kAtMost, way);
  return floor_div(way, window.strides[axis]) + 1;
}

// The runtime truncates towards zero: where no window lies inside, one that reaches over the end by
// less than a stride still gives a result, of what it finds.
Dim pooled_along(NodeFacts& facts, const Dim& dim, const Window& window, size_t axis) {
  const int64_t stride = window.strides[axis];
  if (pads_as_needed(window)) return ceil_div(dim, stride);
  const Dim way = way_of(dim, window, axis);
  if (window.ceils) {
    // No window begins in the pads behind.
    return min(ceil_div(way, stride) + 1, ceil_div(dim + window.pads_begin[axis], stride));
  }
  const Dim whole = floor_div(way, stride) + 1;
  if (stride == 1) return whole;
  const int64_t way_of_none = (way - dim).value();
  if (way_of_none < -stride) {  // of a dim of 1 as well: the runtime may find none at all
    return floor_div(max(way, 0), stride) - floor_div(max(Dim(0) - way, 0), stride) + 1;
  }
  const Dim made = way_of_none < -1 ? max(whole, 1) : whole;
  // Right for every dim from 1 on. What the runtime makes of an empty batch without pixels may
  // differ.
  const Dim of_none = way_of_none < -1 ? Dim(1) : floor_div(way_of_none, stride) + 1;
  if (!of_none.is(way_of_none / stride + 1)) facts.require(1, ir::Relation::kAtMost, dim);
  return made;
}

// The kernel's spatial dims, from the attribute or from the weight [M, C/g, k...].
std::optional<std::vector<int64_t>> kernel_dims(NodeFacts& facts, const Shape& weight) {
  const std::vector<int64_t> named = facts.node().integers("kernel_shape");
  if (!named.empty()) return named;
  const Shape spatial(weight.begin() + 2, weight.end());
  if (!is_static(spatial)) return std::nullopt;
  return static_dims(spatial);
}

void convolution(NodeFacts& facts, size_t weight_input) {
  const Shape* input = facts.shape(0);
  const Shape* weight = facts.shape(weight_input);
  if (!input || !weight || input->size() < 3 || weight->size() != input->size()) return;
  const auto kernel = kernel_dims(facts, *weight);
  if (!kernel || kernel->size() != input->size() - 2) return;
  const auto window = window_of(facts.node(), *kernel);
  if (!window) return;
  facts.require_equal((*input)[1], (*weight)[1] * facts.node().integer("group", 1));
  Shape result{(*input)[0], (*weight)[0]};
  for (size_t i = 0; i < kernel->size(); ++i) {
    result.push_back(convolved_along(facts, (*input)[2 + i], *window, i));
  }
  facts.set_shape(0, std::move(result));
}

void conv(NodeFacts& facts) { convolution(facts, 1); }
void qlinear_conv(NodeFacts& facts) { convolution(facts, 3); }

void conv_transpose(NodeFacts& facts) {
  const Shape* input = facts.shape(0);
  const Shape* weight = facts.shape(1);
  if (!input || !weight) return;
  auto window = ir::transposed_window(facts.node(), *input, *weight);
  if (!window) return;
  facts.require_equal((*input)[1], (*weight)[0]);
  Shape result{(*input)[0], (*weight)[1] * facts.node().integer("group", 1)};
  for (Dim& extent : window->extents) {
    facts.require(0, ir::Relation::kAtMost, extent);
    result.push_back(std::move(extent));
  }
  facts.set_shape(0, std::move(result));
}

// Only the batch may be empty.
void require_pixels(NodeFacts& facts, const Shape& input) {
  facts.require(min(input[0], 1), ir::Relation::kAtMost,
                element_count(Shape(input.begin() + 1, input.end())));
}

void pool(NodeFacts& facts) {
  const Shape* input = facts.shape(0);
  if (!input || input->size() < 3) return;
  const auto window = window_of(facts.node(), facts.node().integers("kernel_shape"));
  if (!window || window->kernel.size() != input->size() - 2) return;
  require_pixels(facts, *input);
  Shape result{(*input)[0], (*input)[1]};
  for (size_t i = 0; i < window->kernel.size(); ++i) {
    result.push_back(pooled_along(facts, (*input)[2 + i], *window, i));
  }
  facts.set_shape(0, result);
  facts.set_shape(1, result);
}

void global_pool(NodeFacts& facts) {
  const Shape* input = facts.shape(0);
  if (!input || input->size() < 2) return;
  require_pixels(facts, *input);
  Shape result(input->size(), Dim(1));
  result[0] = (*input)[0];
  result[1] = (*input)[1];
  facts.set_shape(0, std::move(result));
}

// Y [S, D, B, H], Y_h and Y_c [D, B, H]; layout 1 puts the batch first.
void recurrent(NodeFacts& facts) {
  const Shape* input = facts.shape(0);
  const int64_t hidden = facts.node().integer("hidden_size", 0);
  if (!input || input->size() != 3 || hidden <= 0) return;
  const int64_t directions = facts.node().text("direction", "forward") == "bidirectional" ? 2 : 1;
  const bool batch_first = facts.node().integer("layout", 0) != 0;
  const Dim& length = (*input)[batch_first ? 1 : 0];
  const Dim& batch = (*input)[batch_first ? 0 : 1];
  const Shape last =
      batch_first ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden};
  facts.set_shape(0, batch_first ? Shape{batch, length, directions, hidden}
                                 : Shape{length, directions, batch, hidden});
  facts.set_shape(1, last);
  facts.set_shape(2, last);
}

constexpr ShapeRule kRules[] = {
    {"AveragePool", pool},
    {"Conv", conv},
    {"ConvInteger", conv},
    {"ConvTranspose", conv_transpose},
    {"DeformConv", conv},
    {"GRU", recurrent},
    {"GlobalAveragePool", global_pool},
    {"GlobalLpPool", global_pool},
    {"GlobalMaxPool", global_pool},
    {"LSTM", recurrent},
    {"LpPool", pool},
    {"MaxPool", pool},
    {"QLinearConv", qlinear_conv},
    {"RNN", recurrent},
    {"com.microsoft::FusedConv", conv},
};

}  // namespace

std::span<const ShapeRule> window_shape_rules() { return kRules; }

}  // namespace tenon
