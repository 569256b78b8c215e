// GridSample: places of the grid become indices and weights, and each result's element picks its
// neighbours by them, one axis of the image after the other.
//
//   x [n, c, h, w], grid [n, p, q, 2]:
//   place_h, place_w [n, 1, p, q]  ──►  y = sum over taps of weight_h * weight_w * x[n, c, h_t,
//   w_t]
//
// Indices and weights do not depend on the channel. They are one kernel, picking is another.
#include <array>
#include <string>

#include "graph_partitioner/passes/decompose/interpolation.h"
#include "graph_partitioner/passes/decompose/rules.h"

namespace tenon::decomposition {
namespace {

enum class Kernel { kNearest, kLinear, kCubic };
enum class Padding { kZeros, kBorder, kReflection };

struct Form {
  Kernel kernel = Kernel::kLinear;
  Padding padding = Padding::kZeros;
  bool align_corners = false;
};

class Sampling {
 public:
  Sampling(Emitter& emit, const Form& form, ValueId x, ValueId grid)
      : emit_(emit), form_(form), x_(x), image_(*emit.shape(x)), grid_(*emit.shape(grid)) {
    for (size_t i = 2; i < image_.size(); ++i) add_axis(grid, i);
    for (size_t i = 0; i < axes_.size(); ++i) axes_[i].weights = weights_of(i);
  }

  ValueId run() {
    Shape apart = {image_[0], image_[1]};  // and the grid's axes, which pixels are the same along
    apart.insert(apart.end(), grid_.size() - 2, Dim(1));
    apart.insert(apart.end(), image_.begin() + 2, image_.end());
    const ValueId pixels = emit_.reshape(x_, apart);
    return interpolate(emit_, pixels, axes_);
  }

 private:
  // [n, 1, p, q] and a 1 for each of `behind` axes of the image.
  Shape places(size_t behind) const {
    Shape shape = {grid_[0], 1};
    shape.insert(shape.end(), grid_.begin() + 1, grid_.end() - 1);
    shape.insert(shape.end(), behind, Dim(1));
    return shape;
  }

  // The grid counts axes from the last one. Behind a view of the grid the coordinate is an axis of
  // its own, so that reading it is no view of what a loop computes.
  ValueId coordinate(ValueId grid, size_t axis) {
    Shape apart = places(0);
    apart.push_back(grid_.back());
    const ValueId seen = emit_.reshape(grid, apart);
    std::vector<Dim> starts(apart.size(), Dim(0));
    starts.back() = static_cast<int64_t>(image_.size() - 1 - axis);
    const ValueId picked =
        emit_.slice(seen, starts, std::vector<int64_t>(apart.size(), 1), places(1));
    return emit_.widen(picked);
  }

  // -1 and 1 are the first and the last pixel's middles, or the image's edges.
  ValueId place(ValueId grid, size_t axis) {
    const ValueId given = emit_.binary("Add", coordinate(grid, axis), 1.0);
    if (form_.align_corners) {
      const ValueId last = emit_.dim_value(image_[axis] - 1, DType::kF32);
      const ValueId half = emit_.binary("Div", given, 2.0);
      return emit_.binary("Mul", half, last);
    }
    const ValueId size = emit_.dim_value(image_[axis], DType::kF32);
    const ValueId scaled = emit_.binary("Mul", given, size);
    const ValueId moved = emit_.binary("Sub", scaled, 1.0);
    return emit_.binary("Div", moved, 2.0);
  }

  // Inside the image; NaN compares with nothing and is the first pixel.
  ValueId clamped(ValueId pixel, ValueId last) {
    const ValueId is_below = emit_.compare("Less", pixel, last);
    const ValueId most = emit_.where(is_below, pixel, last);
    const ValueId is_above = emit_.compare("Greater", pixel, 0.0);
    const ValueId zero = emit_.scalar(DType::kF32, 0.0);
    return emit_.where(is_above, most, zero);
  }

  // Mirrored at the edges any number of times: there and back again is two sizes.
  ValueId reflected(ValueId pixel, size_t axis) {
    const double edge = form_.align_corners ? 0.0 : -0.5;
    const Dim size = form_.align_corners ? image_[axis] - 1 : image_[axis];
    const ValueId range = emit_.dim_value(size, DType::kF32);
    const ValueId from_edge = emit_.binary("Sub", pixel, edge);
    const ValueId way = emit_.unary("Abs", from_edge);
    const ValueId share = emit_.binary("Div", way, range);
    const ValueId turns = emit_.unary("Floor", share);
    const ValueId whole = emit_.binary("Mul", turns, range);
    const ValueId rest = emit_.binary("Sub", way, whole);
    const ValueId half = emit_.binary("Mul", turns, 0.5);
    const ValueId pairs = emit_.unary("Floor", half);
    const ValueId is_back = emit_.compare("Less", pairs, half);
    const ValueId back = emit_.binary("Sub", range, rest);
    const ValueId found = emit_.where(is_back, back, rest);
    return emit_.binary("Add", found, edge);
  }

  ValueId index(ValueId pixel, size_t axis) {
    const ValueId last = emit_.dim_value(image_[axis] - 1, DType::kF32);
    if (form_.padding == Padding::kReflection) pixel = reflected(pixel, axis);
    const ValueId inside = clamped(pixel, last);
    const ValueId at = emit_.cast(inside, DType::kI64);
    if (form_.padding != Padding::kZeros) return at;
    const ValueId is_inside = emit_.compare("Equal", inside, pixel);
    const ValueId size = emit_.dim_value(image_[axis], DType::kI64);
    const ValueId from_end = emit_.binary("Sub", at, size);
    return emit_.where(is_inside, at, from_end);
  }

  void add_axis(ValueId grid, size_t number) {
    const ValueId at = place(grid, number);
    PickedAxis& made = axes_.emplace_back();
    made.axis = static_cast<int64_t>(image_.size());
    if (form_.kernel == Kernel::kNearest) {
      const ValueId nearest = emit_.unary("Round", at);
      return add_tap(made, index(nearest, number), number);
    }
    const ValueId below = emit_.unary("Floor", at);
    shares_.push_back(emit_.binary("Sub", at, below));
    const bool is_cubic = form_.kernel == Kernel::kCubic;
    for (int tap = is_cubic ? -1 : 0; tap <= (is_cubic ? 2 : 1); ++tap) {
      const ValueId pixel = tap == 0 ? below : emit_.binary("Add", below, static_cast<double>(tap));
      add_tap(made, index(pixel, number), number);
    }
  }

  // Views, where the kernel of indices ends.
  void add_tap(PickedAxis& made, ValueId index, size_t number) {
    made.indices.push_back(emit_.reshape(index, places(image_.size() - 1 - number)));
    if (form_.padding != Padding::kZeros) return;
    const ValueId seen = emit_.reshape(index, places(0));
    made.outside.push_back(emit_.compare("Less", seen, 0.0));
  }

  // A place that is no number along one axis is none along the others: zeros that stand outside of
  // the image must not hide it.
  ValueId share_of(size_t axis) {
    ValueId share = shares_[axis];
    if (form_.padding != Padding::kZeros) return share;
    for (size_t other = 0; other < shares_.size(); ++other) {
      if (other == axis) continue;
      const ValueId none = emit_.binary("Mul", shares_[other], 0.0);
      share = emit_.binary("Add", share, none);
    }
    return share;
  }

  std::vector<ValueId> weights_of(size_t axis) {
    if (form_.kernel == Kernel::kNearest) return {};
    const ValueId share = share_of(axis);
    std::vector<ValueId> weights = form_.kernel == Kernel::kCubic
                                       ? cubic_weights(emit_, share, kUsualSlope)
                                       : linear_weights(emit_, share);
    for (ValueId& weight : weights) weight = emit_.reshape(weight, places(0));
    return weights;
  }

  Emitter& emit_;
  const Form form_;
  const ValueId x_;
  const Shape image_, grid_;
  std::vector<PickedAxis> axes_;
  std::vector<ValueId> shares_;  // how far a place lies behind the pixel in front of it
};

std::optional<Form> form_of(const Node& node) {
  const std::string mode = node.text("mode", "linear");
  const std::string padding = node.text("padding_mode", "zeros");
  Form form;
  form.align_corners = node.integer("align_corners", 0) != 0;
  if (mode == "nearest") {
    form.kernel = Kernel::kNearest;
  } else if (mode == "cubic" || mode == "bicubic") {
    form.kernel = Kernel::kCubic;
  } else if (mode != "linear" && mode != "bilinear") {
    return std::nullopt;
  }
  if (padding == "border") {
    form.padding = Padding::kBorder;
  } else if (padding == "reflection") {
    form.padding = Padding::kReflection;
  } else if (padding != "zeros") {
    return std::nullopt;
  }
  return form;
}

bool is_real(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

Results grid_sample(Emitter& emit, const Node& node) {
  const auto image = emit.shape(node.input(0)), grid = emit.shape(node.input(1));
  const auto form = form_of(node);
  if (!form || !image || !grid || image->size() != grid->size()) return {};
  const size_t rank = image->size() - 2;
  if (image->size() < 4 || rank > 3 || !grid->back().is(static_cast<int64_t>(rank))) return {};
  if (form->kernel == Kernel::kCubic && rank != 2) return {};  // as the runtime
  if (!is_real(emit.dtype(node.input(0))) || !is_real(emit.dtype(node.input(1)))) return {};
  return {Sampling(emit, *form, node.input(0), node.input(1)).run()};
}

constexpr auto kRules = std::to_array<NamedRule>({
    {"GridSample", grid_sample},
    {"com.microsoft::GridSample", grid_sample},
});

}  // namespace

std::span<const NamedRule> grid_sample_rules() { return kRules; }

}  // namespace tenon::decomposition
