#include "graph_partitioner/passes/pool_by_slices.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

namespace tenon {
namespace {

using decomposition::Emitter;
using ir::kNoValue;
using ir::Node;
using ir::ValueId;

constexpr int64_t kMostTaps = 25;
constexpr int64_t kMostExtent = 1 << 16;  // so that three of them have a product

// Of spatial axis i, which is axis i + 1 of the tensor.
struct Axis {
  int64_t kernel = 1, stride = 1, dilation = 1, before = 0, after = 0;
};

int64_t listed(const std::vector<int64_t>& list, size_t index, int64_t otherwise) {
  return index < list.size() ? list[index] : otherwise;
}

class Pool {
 public:
  Pool(Emitter& emit, const Node& node, ValueId x, const Shape& y)
      : emit_(emit), node_(node), x_(x), y_(y), shape_(*emit.shape(x)) {}

  ValueId run() {
    if (!read()) return kNoValue;
    const bool is_maximum = node_.is("MaxPool");
    if (takes_all()) {
      std::vector<int64_t> axes(axes_.size());
      std::iota(axes.begin(), axes.end(), 1);
      return emit_.reduce(is_maximum ? "ReduceMax" : "ReduceMean", x_, std::move(axes));
    }
    if (taps_ > kMostTaps) return kNoValue;
    const ValueId fill =
        emit_.scalar_like(x_, is_maximum ? -std::numeric_limits<double>::infinity() : 0.0);
    ValueId joined = kNoValue;
    for (int64_t tap = 0; tap < taps_; ++tap) {
      ValueId slice = at(tap, fill);
      if (!is_maximum) slice = emit_.widen(slice);
      joined = joined == kNoValue ? slice : emit_.binary(is_maximum ? "Max" : "Add", joined, slice);
    }
    if (is_maximum) return joined;
    const ValueId mean = emit_.binary("Div", joined, count(joined));
    return emit_.cast(mean, emit_.dtype(x_));
  }

 private:
  bool read() {
    const std::vector<int64_t> kernel = node_.integers("kernel_shape");
    const std::vector<int64_t> pads = node_.integers("pads");
    const std::string auto_pad = node_.text("auto_pad", "NOTSET");
    if (kernel.size() + 2 != shape_.size() || auto_pad.starts_with("SAME")) return false;
    for (size_t i = 0; i < kernel.size(); ++i) {
      Axis axis{kernel[i], listed(node_.integers("strides"), i, 1),
                listed(node_.integers("dilations"), i, 1)};
      if (auto_pad == "NOTSET") {
        axis.before = listed(pads, i, 0);
        axis.after = listed(pads, kernel.size() + i, 0);
      }
      const auto numbers = {axis.kernel, axis.stride, axis.dilation};
      if (std::ranges::min(numbers) < 1 || axis.before < 0 || axis.after < 0) return false;
      if (axis.kernel > kMostExtent) return false;
      taps_ *= axis.kernel;
      axes_.push_back(axis);
    }
    const bool is_dilated =
        std::ranges::any_of(axes_, [](const Axis& axis) { return axis.dilation != 1; });
    return node_.is("MaxPool") || !is_dilated;
  }

  bool takes_all() const {
    for (size_t i = 0; i < axes_.size(); ++i) {
      const Axis& axis = axes_[i];
      if (axis.before != 0 || axis.after != 0 || axis.dilation != 1) return false;
      if (!shape_[i + 1].is(axis.kernel) || !y_[i + 1].is(1)) return false;
    }
    return true;
  }

  bool ceils() const { return node_.integer("ceil_mode", 0) != 0; }

  // A window may reach over the end of x and its pads.
  bool may_reach_over(size_t index) const {
    const Axis& axis = axes_[index];
    const int64_t reach = axis.dilation * (axis.kernel - 1) + 1;
    const Dim way = shape_[index + 1] + (axis.before + axis.after - reach);
    return !(y_[index + 1] == floor_div(way, axis.stride) + 1);
  }

  // Where x has elements for one tap: `count` results from `first` on, beginning at `start` of x.
  struct Reached {
    int64_t first = 0, start = 0;
    Dim count;
  };

  Reached reached(size_t index, int64_t tap) const {
    const Axis& axis = axes_[index];
    const int64_t offset = tap * axis.dilation - axis.before;
    Reached made;
    if (offset < 0) made.first = (-offset + axis.stride - 1) / axis.stride;
    made.start = made.first * axis.stride + offset;
    const Dim inside = floor_div(shape_[index + 1] - (made.start + 1), axis.stride) + 1;
    const Dim wanted = y_[index + 1] - made.first;
    const bool may_leave = axis.before != 0 || axis.after != 0 || may_reach_over(index);
    made.count = may_leave ? max(min(inside, wanted), 0) : wanted;
    return made;
  }

  // What each window sees at one of its taps, `fill` where that is outside of x. Nothing that taps
  // share: a loop would have to end there.
  ValueId at(int64_t tap, ValueId fill) {
    std::vector<Dim> starts(shape_.size(), 0), firsts(shape_.size(), 0);
    std::vector<int64_t> steps(shape_.size(), 1);
    Shape seen = shape_;
    for (size_t i = axes_.size(); i-- > 0;) {
      const Reached along = reached(i, tap % axes_[i].kernel);
      tap /= axes_[i].kernel;
      starts[i + 1] = along.start;
      firsts[i + 1] = along.first;
      steps[i + 1] = axes_[i].stride;
      seen[i + 1] = along.count;
    }
    const ValueId slice = emit_.slice(x_, std::move(starts), std::move(steps), seen);
    return seen == y_ ? slice : emit_.pad(slice, std::move(firsts), fill, y_);
  }

  // How many places each sum is divided by: those inside of x, or inside of its pads, or all of
  // them where pads count and no rounding up adds others.
  ValueId count(ValueId like) {
    const bool counts_pads = node_.integer("count_include_pad", 0) != 0;
    double taps = 1;
    ValueId product = kNoValue;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const Axis& axis = axes_[i];
      const bool is_whole = axis.before == 0 && axis.after == 0 && !may_reach_over(i);
      if (is_whole || (counts_pads && !ceils())) {
        taps *= static_cast<double>(axis.kernel);
        continue;
      }
      const ValueId places = emit_.cast(count_along(i, counts_pads), emit_.dtype(like));
      product = product == kNoValue ? places : emit_.binary("Mul", product, places);
    }
    const ValueId constant = emit_.scalar_like(like, taps);
    return product == kNoValue ? constant : emit_.binary("Mul", product, constant);
  }

  ValueId count_along(size_t index, bool counts_pads) {
    const Axis& axis = axes_[index];
    Shape line(shape_.size(), Dim(1));
    line[index + 1] = y_[index + 1];
    const ValueId position = emit_.position(line, static_cast<int64_t>(index) + 1);
    const ValueId scaled = emit_.binary("Mul", position, static_cast<double>(axis.stride));
    const ValueId first = emit_.binary("Sub", scaled, static_cast<double>(axis.before));
    const ValueId behind = emit_.binary("Add", first, static_cast<double>(axis.kernel));
    const Dim end = shape_[index + 1] + (counts_pads ? axis.after : 0);
    const ValueId limit = emit_.dim_value(end, DType::kI64);
    const ValueId last = emit_.binary("Min", behind, limit);
    if (counts_pads) return emit_.binary("Sub", last, first);
    const ValueId begin = emit_.binary("Max", first, 0.0);
    return emit_.binary("Sub", last, begin);
  }

  Emitter& emit_;
  const Node& node_;
  const ValueId x_;
  const Shape y_, shape_;
  std::vector<Axis> axes_;
  int64_t taps_ = 1;
};

}  // namespace

ValueId pool_by_slices(Emitter& emit, const Node& node, ValueId x, const Shape& y) {
  return Pool(emit, node, x, y).run();
}

}  // namespace tenon
