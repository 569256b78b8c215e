#include "graph_partitioner/passes/decompose/interpolation.h"

namespace tenon::decomposition {
namespace {

class Sum {
 public:
  Sum(Emitter& emit, ValueId pixels, std::span<const PickedAxis> axes)
      : emit_(emit), pixels_(pixels), axes_(axes) {}

  // Over the taps of this axis and those behind it. A loop may read through a chain of picks, but
  // not write what several of them share: each pixel has a chain of its own.
  ValueId over(size_t number) {
    if (number == axes_.size()) return pixel();
    const PickedAxis& axis = axes_[number];
    ValueId sum = kNoValue;
    for (size_t tap = 0; tap < axis.indices.size(); ++tap) {
      chosen_.push_back(tap);
      const ValueId value = or_zero(axis, tap, over(number + 1));
      chosen_.pop_back();
      if (axis.weights.empty()) return value;
      const ValueId part = emit_.binary("Mul", value, axis.weights[tap]);
      sum = sum == kNoValue ? part : emit_.binary("Add", sum, part);
    }
    return sum;
  }

 private:
  ValueId pixel() {
    ValueId picked = pixels_;
    bool is_weighed = false;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const bool from_end = !axes_[i].outside.empty();
      picked = emit_.pick(picked, axes_[i].indices[chosen_[i]], axes_[i].axis, from_end);
      is_weighed = is_weighed || !axes_[i].weights.empty();
    }
    return is_weighed ? emit_.widen(picked) : picked;
  }

  ValueId or_zero(const PickedAxis& axis, size_t tap, ValueId value) {
    if (axis.outside.empty()) return value;
    const ValueId zero = emit_.scalar_like(value, 0.0);
    return emit_.where(axis.outside[tap], zero, value);
  }

  Emitter& emit_;
  const ValueId pixels_;
  const std::span<const PickedAxis> axes_;
  std::vector<size_t> chosen_;  // taps of the axes so far
};

// ((c3 * x + c2) * x + c1) * x + c0
ValueId polynomial(Emitter& emit, ValueId x, double c3, double c2, double c1, double c0) {
  ValueId sum = emit.binary("Mul", x, c3);
  for (const double next : {c2, c1}) {
    if (next != 0) sum = emit.binary("Add", sum, next);
    sum = emit.binary("Mul", sum, x);
  }
  return c0 == 0 ? sum : emit.binary("Add", sum, c0);
}

// Of a neighbour at most one away, and of one that lies between one and two away.
ValueId near(Emitter& emit, ValueId way, double a) {
  return polynomial(emit, way, a + 2, -(a + 3), 0, 1);
}
ValueId far(Emitter& emit, ValueId way, double a) {
  return polynomial(emit, way, a, -5 * a, 8 * a, -4 * a);
}

}  // namespace

ValueId interpolate(Emitter& emit, ValueId pixels, std::span<const PickedAxis> axes) {
  return Sum(emit, pixels, axes).over(0);
}

std::vector<ValueId> linear_weights(Emitter& emit, ValueId share) {
  const ValueId one = emit.scalar(DType::kF32, 1.0);
  const ValueId rest = emit.binary("Sub", one, share);
  return {rest, share};
}

std::vector<ValueId> cubic_weights(Emitter& emit, ValueId share, double slope) {
  const ValueId one = emit.scalar(DType::kF32, 1.0), two = emit.scalar(DType::kF32, 2.0);
  const ValueId first = emit.binary("Add", share, 1.0);
  const ValueId third = emit.binary("Sub", one, share);
  const ValueId fourth = emit.binary("Sub", two, share);
  std::vector<ValueId> weights = {far(emit, first, slope)};
  weights.push_back(near(emit, share, slope));
  weights.push_back(near(emit, third, slope));
  weights.push_back(far(emit, fourth, slope));
  return weights;
}

}  // namespace tenon::decomposition
