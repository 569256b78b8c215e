// Ops that no kernel here takes: what stands behind one still knows the sizes of its results. What
// depends on data (NonZero, Unique, NonMaxSuppression) or on a body (If, Loop, Scan) has the shape
// that the runtime infers, with a symbol for each size that nobody knows.
#include <algorithm>

#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

void same(NodeFacts& facts) {
  if (facts.shape(0)) facts.set_shape(0, *facts.shape(0));
}

void broadcast_of(NodeFacts& facts, std::initializer_list<size_t> operands) {
  std::vector<Shape> shapes;
  for (const size_t operand : operands) {
    if (!facts.shape(operand)) return;
    shapes.push_back(*facts.shape(operand));
  }
  if (auto shape = broadcast_all(shapes)) facts.set_shape(0, *shape);
}

// Operands, each with its scale and zero point.
void quantized_binary(NodeFacts& facts) { broadcast_of(facts, {0, 3}); }
void quantized_where(NodeFacts& facts) { broadcast_of(facts, {0, 1, 4}); }
void complex_product(NodeFacts& facts) { broadcast_of(facts, {0, 1}); }

// The result's scale and zero point, then the operands.
void quantized_concat(NodeFacts& facts) {
  const Shape* first = facts.shape(2);
  if (!first) return;
  const auto axis = normal_axis(facts.node().integer("axis", 0), first->size());
  if (!axis) return;
  Shape result = *first;
  for (size_t i = 5; i < facts.input_count(); i += 3) {
    const Shape* next = facts.shape(i);
    if (!next || next->size() != result.size()) return;
    result[*axis] = result[*axis] + (*next)[*axis];
  }
  facts.set_shape(0, std::move(result));
}

void quantized_global_pool(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape || shape->size() < 3) return;
  const size_t channels = facts.node().integer("channels_last", 0) != 0 ? shape->size() - 1 : 1;
  Shape result(shape->size(), Dim(1));
  for (const size_t axis : {size_t{0}, channels}) result[axis] = (*shape)[axis];
  facts.set_shape(0, std::move(result));
}

void skip_group_norm(NodeFacts& facts) {
  if (!facts.shape(0)) return;
  for (const size_t output : {0, 1}) facts.set_shape(output, *facts.shape(0));
}

// Two halves of the last axis become one.
void split_gelu(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape || shape->empty()) return;
  Shape result = *shape;
  result.back() = floor_div(result.back(), 2);
  facts.set_shape(0, std::move(result));
}

// Ids [batch, tokens] and a table [words, width].
void embedding(NodeFacts& facts) {
  const Shape* ids = facts.shape(0);
  const Shape* table = facts.shape(2);
  if (!ids || ids->size() != 2 || !table || table->size() != 2) return;
  for (const size_t output : {0, 2}) {
    facts.set_shape(output, {(*ids)[0], (*ids)[1], (*table)[1]});
  }
}

// [batch, channels, …] read at the places of a grid [batch, …, coordinates].
void grid_sample(NodeFacts& facts) {
  const Shape* data = facts.shape(0);
  const Shape* grid = facts.shape(1);
  if (!data || !grid || data->size() < 3 || grid->size() != data->size()) return;
  facts.require_equal((*grid)[0], (*data)[0]);
  facts.require_equal(grid->back(), static_cast<int64_t>(data->size()) - 2);
  Shape result{(*data)[0], (*data)[1]};
  result.insert(result.end(), grid->begin() + 1, grid->end() - 1);
  facts.set_shape(0, std::move(result));
}

// [batch, channels, …] becomes a place of so many coordinates for each pixel.
void affine_grid(NodeFacts& facts) {
  const auto size = facts.elements(1);
  if (!size || size->size() < 4 || !std::ranges::all_of(*size, never_negative)) return;
  Shape result{size->front()};
  result.insert(result.end(), size->begin() + 2, size->end());
  result.emplace_back(static_cast<int64_t>(size->size()) - 2);
  facts.set_shape(0, std::move(result));
}

void regions(NodeFacts& facts, const std::vector<int64_t>& window) {
  const Shape* data = facts.shape(0);
  const Shape* rois = facts.shape(1);
  if (!data || data->size() != 4 || !rois || rois->size() != 2 || window.size() != 2) return;
  facts.set_shape(0, {(*rois)[0], (*data)[1], window[0], window[1]});
}

void roi_align(NodeFacts& facts) {
  regions(facts,
          {facts.node().integer("output_height", 1), facts.node().integer("output_width", 1)});
}
void roi_pool(NodeFacts& facts) { regions(facts, facts.node().integers("pooled_shape")); }

void crop_or_pad(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  const auto sizes = facts.elements(1);
  if (!shape || !sizes || !std::ranges::all_of(*sizes, never_negative)) return;
  std::vector<int64_t> axes = facts.node().integers("axes");
  if (!facts.node().has("axes")) {
    for (size_t i = 0; i < shape->size(); ++i) axes.push_back(static_cast<int64_t>(i));
  }
  if (axes.size() != sizes->size()) return;
  Shape result = *shape;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = normal_axis(axes[i], shape->size());
    if (!axis) return;
    result[*axis] = (*sizes)[i];
  }
  facts.set_shape(0, std::move(result));
}

// [batch, channels * block, blocks] → [batch, channels, image…]
void columns_to_image(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  const auto image = facts.elements(1), block = facts.elements(2);
  if (!shape || shape->size() != 3 || !image || !block) return;
  if (!std::ranges::all_of(*image, never_negative) || element_count(*block).is(0)) return;
  Shape result{(*shape)[0], floor_div((*shape)[1], element_count(*block))};
  result.insert(result.end(), image->begin(), image->end());
  facts.set_shape(0, std::move(result));
}

void determinant(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (shape && shape->size() >= 2) facts.set_shape(0, Shape(shape->begin(), shape->end() - 2));
}

void unpool(NodeFacts& facts) {
  const auto sizes = facts.elements(2);
  if (sizes && std::ranges::all_of(*sizes, never_negative)) facts.set_shape(0, *sizes);
}

void window_of(NodeFacts& facts) {
  const auto size = facts.elements(0);
  if (size && size->size() == 1 && never_negative(size->front())) {
    facts.set_shape(0, {size->front()});
  }
}

void mel_weights(NodeFacts& facts) {
  const auto bins = facts.elements(0), length = facts.elements(1);
  if (!bins || !length || bins->size() != 1 || length->size() != 1) return;
  facts.set_shape(0, {floor_div(length->front(), 2) + 1, bins->front()});
}

void draw(NodeFacts& facts) {
  const Shape* shape = facts.shape(0);
  if (!shape || shape->size() != 2) return;
  facts.set_shape(0, {(*shape)[0], facts.node().integer("sample_size", 1)});
}

void random(NodeFacts& facts) { facts.set_shape(0, make_shape(facts.node().integers("shape"))); }

// Of scores [batch, classes, …]; the logarithms of probabilities are the second result.
void loss(NodeFacts& facts) {
  const Shape* scores = facts.shape(0);
  if (!scores || scores->size() < 2) return;
  Shape each = *scores;
  each.erase(each.begin() + 1);
  const bool is_reduced = facts.node().text("reduction", "mean") != "none";
  facts.set_shape(0, is_reduced ? Shape{} : each);
  facts.set_shape(1, *scores);
}

constexpr ShapeRule kRules[] = {
    {"AffineGrid", affine_grid},
    {"BlackmanWindow", window_of},
    {"CenterCropPad", crop_or_pad},
    {"Col2Im", columns_to_image},
    {"Det", determinant},
    {"GridSample", grid_sample},
    {"HammingWindow", window_of},
    {"HannWindow", window_of},
    {"MaxRoiPool", roi_pool},
    {"MaxUnpool", unpool},
    {"MelWeightMatrix", mel_weights},
    {"Multinomial", draw},
    {"NegativeLogLikelihoodLoss", loss},
    {"RandomNormal", random},
    {"RandomNormalLike", same},
    {"RandomUniform", random},
    {"RandomUniformLike", same},
    {"RoiAlign", roi_align},
    {"SoftmaxCrossEntropyLoss", loss},
    {"com.microsoft::BiasAdd", same},
    {"com.microsoft::BiasSplitGelu", split_gelu},
    {"com.microsoft::ComplexMul", complex_product},
    {"com.microsoft::EmbedLayerNormalization", embedding},
    {"com.microsoft::GridSample", grid_sample},
    {"com.microsoft::Inverse", same},
    {"com.microsoft::MoE", same},
    {"com.microsoft::QLinearAdd", quantized_binary},
    {"com.microsoft::QLinearConcat", quantized_concat},
    {"com.microsoft::QLinearGlobalAveragePool", quantized_global_pool},
    {"com.microsoft::QLinearLeakyRelu", same},
    {"com.microsoft::QLinearMul", quantized_binary},
    {"com.microsoft::QLinearSigmoid", same},
    {"com.microsoft::QLinearSoftmax", same},
    {"com.microsoft::QLinearWhere", quantized_where},
    {"com.microsoft::QMoE", same},
    {"com.microsoft::SkipGroupNorm", skip_group_norm},
};

}  // namespace

std::span<const ShapeRule> other_shape_rules() { return kRules; }

}  // namespace tenon
