// ConvTranspose in one of two forms, with its bias behind it:
//
//   windows side by side (2x2, strides 2x2)   =>   Conv 1x1 ── Reshape ── Transpose ── Reshape
//   any others                                =>   ConvTranspose ── Slice or Pad
//
// The first is a convolution of one tap that gives each window's elements as channels, which then
// take their places. The second has what libraries know as a convolution's gradient by its data: as
// many pads behind as in front, and fewer added elements than a stride.
#include <algorithm>

#include "graph_partitioner/ir/transposed_window.h"
#include "graph_partitioner/passes/normalize/rules.h"

namespace tenon::normalization {
namespace {

using ir::TransposedWindow;
using ir::ValueId;
using Numbers = std::vector<int64_t>;

bool all_are(const Numbers& list, int64_t value) {
  return std::ranges::all_of(list, [&](int64_t each) { return each == value; });
}

bool lies_side_by_side(const ir::Node& node, const TransposedWindow& window) {
  return window.strides == window.kernel && node.integer("group", 1) == 1 &&
         all_are(window.dilations, 1) && all_are(window.pads_before, 0) &&
         all_are(window.pads_after, 0) && all_are(window.added, 0);
}

// [c, m, h, w] as filters [m * h * w, c, 1, 1].
ValueId filters(Rewrite& r, ValueId w, const Numbers& dims) {
  int64_t made = 1;
  for (size_t i = 1; i < dims.size(); ++i) made *= dims[i];
  const ValueId flat = r.emit.reshape(w, make_shape({dims[0], made}));
  Numbers filter(dims.size(), 1);
  filter[0] = made;
  filter[1] = dims[0];
  return r.emit.reshape(r.emit.transpose(flat, {1, 0}), make_shape(filter));
}

// [n, m * h * w, H, W] as [n, m, H * h, W * w].
ValueId spread(Rewrite& r, ValueId y, const Shape& x, const Numbers& w) {
  const size_t spatial = w.size() - 2;
  Shape split = {x[0], w[1]}, merged = {x[0], w[1]};
  Numbers perm = {0, 1};
  for (size_t i = 0; i < spatial; ++i) {
    split.emplace_back(w[2 + i]);
    merged.push_back(x[2 + i] * w[2 + i]);
    perm.push_back(static_cast<int64_t>(2 + spatial + i));
    perm.push_back(static_cast<int64_t>(2 + i));
  }
  split.insert(split.end(), x.begin() + 2, x.end());
  const ValueId apart = r.emit.reshape(y, split);
  return r.emit.reshape(r.emit.transpose(apart, perm), merged);
}

ValueId side_by_side(Rewrite& r, const Shape& x, const Numbers& filter) {
  ir::Node conv;
  conv.op = "Conv";
  conv.since_version = 11;
  conv.inputs = {r.input(0), filters(r, r.input(1), filter)};
  Shape channels = x;
  channels[1] = r.graph().value(conv.inputs[1]).shape->front();
  const ValueId y = r.emit.emit(std::move(conv), r.dtype(r.input(0)), channels);
  return spread(r, y, x, filter);
}

// What a ConvTranspose with pads on both sides alike makes, and which part of it is wanted.
struct Evened {
  Numbers pads, added;
  std::vector<Dim> starts;
  Shape made;
};

Evened evened(const TransposedWindow& window, const Shape& result) {
  Evened even;
  even.made = {result[0], result[1]};
  even.starts = {0, 0};
  for (size_t i = 0; i < window.rank(); ++i) {
    const int64_t most = window.strides[i] - 1;
    const int64_t left = window.added[i] - window.pads_after[i];
    int64_t pad = std::min(window.pads_before[i], window.pads_after[i]);
    // What is added then is zeros alone: what windows make is never cut off in front of them.
    if (left + pad > most) pad = std::min(pad, most);
    const int64_t behind = left + pad;
    even.pads.push_back(pad);
    even.added.push_back(std::clamp<int64_t>(behind, 0, most));
    even.starts.emplace_back(window.pads_before[i] - pad);
    even.made.push_back(window.extents[i] + even.starts.back() + (even.added.back() - behind));
  }
  return even;
}

ValueId overlapping(Rewrite& r, const TransposedWindow& window, const Shape& result) {
  const Evened even = evened(window, result);
  Numbers pads = even.pads;
  pads.insert(pads.end(), even.pads.begin(), even.pads.end());
  ir::Node conv;
  conv.op = "ConvTranspose";
  conv.since_version = 11;
  conv.inputs = {r.input(0), r.input(1)};
  conv.attributes = {{"dilations", window.dilations},
                     {"group", r.node().integer("group", 1)},
                     {"output_padding", even.added},
                     {"pads", pads},
                     {"strides", window.strides}};
  ValueId y = r.emit.emit(std::move(conv), r.dtype(r.input(0)), even.made);
  Shape longer = result;  // along each axis what was made or what is wanted
  for (size_t i = 2; i < longer.size(); ++i) {
    const Dim more = result[i] + even.starts[i] - even.made[i];
    longer[i] = more.is_constant() && more.value() > 0 ? even.made[i] + more : even.made[i];
  }
  if (longer != even.made) {
    const ValueId zero = r.emit.scalar_like(y, 0);
    y = r.emit.pad(y, std::vector<Dim>(longer.size(), Dim(0)), zero, longer);
  }
  if (longer == result) return y;
  return r.emit.slice(y, even.starts, Numbers(result.size(), 1), result);
}

// Nothing is left to be made of it.
bool is_plain(const ir::Node& node, const TransposedWindow& window) {
  for (size_t i = 0; i < window.rank(); ++i) {
    if (window.pads_before[i] != window.pads_after[i]) return false;
    if (window.added[i] >= window.strides[i]) return false;
  }
  return node.input(2) == ir::kNoValue && node.has("pads");
}

bool conv_transpose(Rewrite& r) {
  const auto x = r.shape(r.input(0)), w = r.shape(r.input(1));
  if (!x || !w || !is_static(*w)) return false;
  const auto window = ir::transposed_window(r.node(), *x, *w);
  const int64_t groups = r.node().integer("group", 1);
  if (!window || groups < 1 || !(*x)[1].is((*w)[0].value())) return false;
  const bool is_simple = lies_side_by_side(r.node(), *window);
  if (!is_simple && is_plain(r.node(), *window)) return false;
  Shape result = {(*x)[0], (*w)[1] * groups};
  result.insert(result.end(), window->extents.begin(), window->extents.end());
  ValueId y = is_simple ? side_by_side(r, *x, static_dims(*w)) : overlapping(r, *window, result);
  if (r.has_input(2)) {
    Shape each(x->size() - 1, Dim(1));
    each[0] = result[1];
    const ValueId bias = r.emit.reshape(r.input(2), each);
    y = r.emit.binary("Add", y, bias);
  }
  return r.replace(0, y);
}

constexpr NamedRewrite kRules[] = {{"ConvTranspose", conv_transpose}};

}  // namespace

std::span<const NamedRewrite> transposed_convolution_rules() { return kRules; }

}  // namespace tenon::normalization
