// Resize and Upsample: along each axis, elements that are picked by where they come from, or
// weighed between two neighbours or four.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/convert.h"
#include "graph_partitioner/passes/decompose/interpolation.h"
#include "graph_partitioner/passes/decompose/rules.h"

namespace tenon::decomposition {
namespace {

enum class Kernel { kNearest, kLinear, kCubic };

struct Form {
  Kernel kernel = Kernel::kNearest;
  std::string place;                // coordinate_transformation_mode
  std::string nearest;              // nearest_mode
  std::vector<double> scales = {};  // one per axis; empty: by the sizes
  double slope = kUsualSlope;
  bool excludes_outside = false;  // neighbours that are not there count for nothing

  bool weighs() const { return kernel != Kernel::kNearest; }
};

constexpr auto kPlaces = std::to_array<std::string_view>(
    {"align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel"});

class Resizing {
 public:
  Resizing(Emitter& emit, const Form& form, const Shape& from, const Shape& to)
      : emit_(emit), form_(form), from_(from), to_(to) {}

  ValueId run(ValueId x) {
    if (form_.weighs()) return weighed(x);
    for (size_t axis = 0; axis < from_.size(); ++axis) x = along(x, axis);
    return x;
  }

  // The runtime weighs pixels only, and refuses other axes.
  bool weighs_pixels() const {
    const size_t rank = from_.size();
    if (form_.kernel == Kernel::kCubic) return rank == 2 || (rank == 4 && is_same(0) && is_same(1));
    if (rank < 4) return rank > 1;
    if (rank > 5 || !is_same(0)) return false;
    return is_same(1) || (rank == 4 && is_same(3));
  }

 private:
  ValueId along(ValueId x, size_t axis) {
    if (is_same(axis)) return x;
    if (repeats(axis)) {
      const auto block = static_cast<int64_t>(form_.scales[axis]);
      return emit_.block_expand(x, static_cast<int64_t>(axis), block, to_[axis]);
    }
    const ValueId index = index_of(rounded(place_of(axis)), axis);
    return emit_.gather(x, index, static_cast<int64_t>(axis), false);
  }

  bool is_same(size_t axis) const {
    return from_[axis] == to_[axis] && (form_.scales.empty() || form_.scales[axis] == 1);
  }

  // Each element a whole number of times: every way to round finds the same one.
  bool repeats(size_t axis) const {
    if (form_.weighs() || form_.scales.empty()) return false;
    const double scale = form_.scales[axis];
    if (scale < 1 || scale != std::floor(scale) ||
        to_[axis] != from_[axis] * Dim(static_cast<int64_t>(scale))) {
      return false;
    }
    if (form_.place == "asymmetric") return form_.nearest == "floor";
    return form_.place == "half_pixel" && form_.nearest.starts_with("round");
  }

  ValueId scale_of(size_t axis) {
    if (!form_.scales.empty()) return emit_.scalar(DType::kF32, form_.scales[axis]);
    const ValueId to = emit_.dim_value(to_[axis], DType::kF32);
    const ValueId from = emit_.dim_value(from_[axis], DType::kF32);
    return emit_.binary("Div", to, from);
  }

  // Where each result's element lies in x, f32[to], as the runtime computes it.
  ValueId place_of(size_t axis) {
    const ValueId index = emit_.position({to_[axis]}, 0);
    const ValueId at = emit_.cast(index, DType::kF32);
    if (form_.place == "align_corners") {
      const ValueId steps = emit_.dim_value(max(to_[axis] - 1, 1), DType::kF32);
      const ValueId last = emit_.dim_value(from_[axis] - 1, DType::kF32);
      const ValueId product = emit_.binary("Mul", at, last);
      return emit_.binary("Div", product, steps);
    }
    const ValueId scale = scale_of(axis);
    if (form_.place == "asymmetric") return emit_.binary("Div", at, scale);
    const ValueId middle = emit_.binary("Add", at, 0.5);
    const ValueId scaled = emit_.binary("Div", middle, scale);
    const ValueId place = emit_.binary("Sub", scaled, 0.5);
    if (form_.place == "half_pixel") return place;
    // pytorch_half_pixel: one element is the first.
    const ValueId more = emit_.dim_value(min(max(to_[axis] - 1, 0), 1), DType::kF32);
    return emit_.binary("Mul", place, more);
  }

  ValueId rounded(ValueId place) {
    if (form_.nearest == "floor") return emit_.unary("Floor", place);
    if (form_.nearest == "ceil") return emit_.unary("Ceil", place);
    if (form_.nearest == "round_prefer_ceil") {
      const ValueId above = emit_.binary("Add", place, 0.5);
      return emit_.unary("Floor", above);
    }
    const ValueId below = emit_.binary("Sub", place, 0.5);
    return emit_.unary("Ceil", below);
  }

  // `place`, f32, cut to what x has.
  ValueId inside(ValueId place, size_t axis) {
    const ValueId last = emit_.dim_value(from_[axis] - 1, DType::kF32);
    const ValueId most = emit_.binary("Min", place, last);
    return emit_.binary("Max", most, 0.0);
  }

  ValueId index_of(ValueId place, size_t axis) {
    return emit_.cast(inside(place, axis), DType::kI64);
  }

  // f32[to] against the axes of the result and `more` behind them.
  ValueId along_axis(ValueId list, size_t axis, size_t more = 0) {
    Shape line(from_.size() - axis + more, Dim(1));
    line[0] = to_[axis];
    return emit_.reshape(list, line);
  }

  // Each axis that is weighed stands behind one that the result has in its place.
  ValueId weighed(ValueId x) {
    Shape apart;
    std::vector<PickedAxis> axes;
    for (size_t axis = 0; axis < from_.size(); ++axis) {
      if (!is_same(axis)) apart.emplace_back(1);
      apart.push_back(from_[axis]);
    }
    size_t more = apart.size() - from_.size();
    for (size_t axis = 0; axis < from_.size(); ++axis) {
      if (!is_same(axis)) axes.push_back(taps_of(axis, --more));
    }
    const ValueId pixels = emit_.reshape(x, apart);
    return axes.empty() ? pixels : interpolate(emit_, pixels, axes);
  }

  // `more`: axes behind it that are still to be picked along.
  PickedAxis taps_of(size_t axis, size_t more) {
    const bool is_cubic = form_.kernel == Kernel::kCubic;
    const ValueId given = place_of(axis);
    const ValueId place = is_cubic ? given : inside(given, axis);
    const ValueId below = emit_.unary("Floor", place);
    const ValueId share = emit_.binary("Sub", place, below);
    std::vector<ValueId> pixels;
    for (int tap = is_cubic ? -1 : 0; tap <= (is_cubic ? 2 : 1); ++tap) {
      const ValueId pixel = tap == 0 ? below : emit_.binary("Add", below, static_cast<double>(tap));
      pixels.push_back(pixel);
    }
    PickedAxis made;
    made.axis = static_cast<int64_t>(axis) + 1;
    made.weights =
        is_cubic ? cubic_weights(emit_, share, form_.slope) : linear_weights(emit_, share);
    if (is_cubic && form_.excludes_outside)
      made.weights = of_those_inside(made.weights, pixels, axis);
    for (ValueId& weight : made.weights) weight = along_axis(weight, axis);
    for (const ValueId pixel : pixels) {
      made.indices.push_back(along_axis(index_of(pixel, axis), axis, more));
    }
    return made;
  }

  std::vector<ValueId> of_those_inside(const std::vector<ValueId>& weights,
                                       const std::vector<ValueId>& pixels, size_t axis) {
    std::vector<ValueId> kept;
    ValueId sum = kNoValue;
    for (size_t tap = 0; tap < pixels.size(); ++tap) {
      const ValueId there = inside(pixels[tap], axis);
      const ValueId is_there = emit_.compare("Equal", there, pixels[tap]);
      const ValueId zero = emit_.scalar(DType::kF32, 0.0);
      kept.push_back(emit_.where(is_there, weights[tap], zero));
      sum = sum == kNoValue ? kept[tap] : emit_.binary("Add", sum, kept[tap]);
    }
    for (ValueId& weight : kept) weight = emit_.binary("Div", weight, sum);
    return kept;
  }

  Emitter& emit_;
  const Form& form_;
  const Shape from_, to_;
};

// False where the node asks for something else. Scales are those of `axes`; others keep their size.
bool read_scales(Emitter& emit, const Node& node, size_t input, const Shape& shape, Form& form) {
  const ValueId scales = node.input(input);
  if (scales == kNoValue) return true;
  const ir::Value value = emit.value(scales);
  if (!value.is_constant()) return false;
  if (value.constant->elements() == 0) return true;
  std::vector<int64_t> axes = node.integers("axes");
  if (!node.has("axes")) axes = axes_between(0, static_cast<int64_t>(shape.size()));
  if (value.constant->elements() != static_cast<int64_t>(axes.size())) return false;
  form.scales.assign(shape.size(), 1);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = normal_axis(axes[i], shape);
    const double scale = load_element(value.dtype, value.constant->data, static_cast<int64_t>(i));
    if (!axis || !(scale > 0)) return false;
    form.scales[static_cast<size_t>(*axis)] = scale;
  }
  return true;
}

Results resized(Emitter& emit, const Node& node, Form form, size_t scales) {
  const auto from = emit.shape(node.input(0)), to = emit.shape(node.output(0));
  if (!from || !to || from->size() != to->size()) return {};
  if (!read_scales(emit, node, scales, *from, form)) return {};
  const DType dtype = emit.dtype(node.input(0));
  const bool is_real = dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  if (form.weighs() && !is_real) return {};
  Resizing resizing(emit, form, *from, *to);
  if (form.weighs() && !resizing.weighs_pixels()) return {};
  return {resizing.run(node.input(0))};
}

bool is_linear(const std::string& mode) { return mode == "linear" || mode == "bilinear"; }

// Upsample, and Resize as it first was.
Results upsample(Emitter& emit, const Node& node) {
  const std::string mode = node.text("mode", "nearest");
  if (mode != "nearest" && !is_linear(mode)) return {};
  const Kernel kernel = is_linear(mode) ? Kernel::kLinear : Kernel::kNearest;
  return resized(emit, node, {.kernel = kernel, .place = "asymmetric", .nearest = "floor"}, 1);
}

Results resize(Emitter& emit, const Node& node) {
  if (node.since_version == 10) return upsample(emit, node);
  const std::string mode = node.text("mode", "nearest");
  Form form{.kernel = mode == "linear"  ? Kernel::kLinear
                      : mode == "cubic" ? Kernel::kCubic
                                        : Kernel::kNearest,
            .place = node.text("coordinate_transformation_mode", "half_pixel"),
            .nearest = node.text("nearest_mode", "round_prefer_floor"),
            .slope = node.number("cubic_coeff_a", static_cast<float>(kUsualSlope)),
            .excludes_outside = node.integer("exclude_outside", 0) != 0};
  if (mode != "nearest" && mode != "linear" && mode != "cubic") return {};
  if (std::find(kPlaces.begin(), kPlaces.end(), form.place) == kPlaces.end()) return {};
  if (node.integer("antialias", 0) != 0) return {};
  if (node.text("keep_aspect_ratio_policy", "stretch") != "stretch") return {};
  return resized(emit, node, std::move(form), 2);
}

constexpr auto kRules = std::to_array<NamedRule>({
    {"Resize", resize},
    {"Upsample", upsample},
});

}  // namespace

std::span<const NamedRule> resize_rules() { return kRules; }

}  // namespace tenon::decomposition
