// A ConvTranspose whose windows lie side by side is a convolution of one tap that gives each
// window's elements as channels, which then take their places:
//
//   ConvTranspose 2x2, strides 2x2   =>   Conv 1x1 ── Reshape ── Transpose ── Reshape [──
//   Add(bias)]
#include <algorithm>

#include "graph_partitioner/passes/normalize/rules.h"

namespace tenon::normalization {
namespace {

using ir::ValueId;

bool all_are(const std::vector<int64_t>& list, int64_t value) {
  return std::ranges::all_of(list, [&](int64_t each) { return each == value; });
}

bool lies_side_by_side(const ir::Node& node, const std::vector<int64_t>& filter) {
  const std::vector<int64_t> kernel(filter.begin() + 2, filter.end());
  const std::vector<int64_t> named = node.integers("kernel_shape");
  return node.integers("strides") == kernel && (named.empty() || named == kernel) &&
         node.integer("group", 1) == 1 && all_are(node.integers("dilations"), 1) &&
         all_are(node.integers("pads"), 0) && all_are(node.integers("output_padding"), 0) &&
         !node.has("output_shape") && node.text("auto_pad", "NOTSET") == "NOTSET";
}

// [c, m, h, w] as filters [m * h * w, c, 1, 1].
ValueId filters(Rewrite& r, ValueId w, const std::vector<int64_t>& dims) {
  int64_t made = 1;
  for (size_t i = 1; i < dims.size(); ++i) made *= dims[i];
  const ValueId flat = r.emit.reshape(w, make_shape({dims[0], made}));
  std::vector<int64_t> filter(dims.size(), 1);
  filter[0] = made;
  filter[1] = dims[0];
  return r.emit.reshape(r.emit.transpose(flat, {1, 0}), make_shape(filter));
}

// [n, m * h * w, H, W] as [n, m, H * h, W * w].
ValueId spread(Rewrite& r, ValueId y, const Shape& x, const std::vector<int64_t>& w) {
  const size_t spatial = w.size() - 2;
  Shape split = {x[0], w[1]}, merged = {x[0], w[1]};
  std::vector<int64_t> perm = {0, 1};
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

bool conv_transpose(Rewrite& r) {
  const auto x = r.shape(r.input(0)), w = r.shape(r.input(1));
  if (!x || !w || !is_static(*w) || x->size() != w->size() || x->size() < 3) return false;
  const std::vector<int64_t> filter = static_dims(*w);
  if (!(*x)[1].is(filter[0]) || !lies_side_by_side(r.node(), filter)) return false;
  ir::Node conv;
  conv.op = "Conv";
  conv.since_version = 11;
  conv.inputs = {r.input(0), filters(r, r.input(1), filter)};
  Shape channels = *x;
  channels[1] = r.graph().value(conv.inputs[1]).shape->front();
  const ValueId y = r.emit.emit(std::move(conv), r.dtype(r.input(0)), channels);
  ValueId result = spread(r, y, *x, filter);
  if (r.has_input(2)) {
    Shape each(x->size() - 1, Dim(1));
    each[0] = filter[1];
    result = r.emit.binary("Add", result, r.emit.reshape(r.input(2), each));
  }
  return r.replace(0, result);
}

constexpr NamedRewrite kRules[] = {{"ConvTranspose", conv_transpose}};

}  // namespace

std::span<const NamedRewrite> transposed_convolution_rules() { return kRules; }

}  // namespace tenon::normalization
