// Random graphs of products, attentions, norms, pointwise ops and views, with odd sizes.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/distributed/sharding/decoder_graph.h"

namespace tenon::testing {

class RandomLayers {
 public:
  RandomLayers(const DecoderForm& form, unsigned seed)
      : build_({}, form, seed), form_(form), random_(seed) {
    for (const char* name : {"x", "y"}) keep(build_.input(name, DType::kF32, rows(width())));
  }

  // Every result that nobody reads leaves the graph, and some of the others.
  ir::Graph grow(int steps) {
    while (steps-- > 0) step();
    std::vector<ir::ValueId> leaving;
    for (const ir::ValueId id : values_) {
      if (build_.graph.producer(id) == nullptr) continue;
      if (build_.graph.consumers(id).empty() || draw(0, 14) == 0) leaving.push_back(id);
    }
    for (const ir::ValueId id : leaving) build_.graph.add_output(id);
    return std::move(build_.graph);
  }

  const std::vector<std::string>& weights() const { return weights_; }

 private:
  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  // Rows of nibbles begin with a byte.
  int64_t width() {
    const bool odd = form_.weights == WeightFormat::kPlain;
    return odd ? draw(3, 70) : 16 * draw(1, 5);
  }
  Shape rows(int64_t width) const { return build_.rows(width); }
  int64_t width_of(ir::ValueId id) const { return build_.graph.value(id).shape->back().value(); }
  std::string fresh(const std::string& name) { return name + std::to_string(count_++); }
  ir::ValueId keep(ir::ValueId id) {
    values_.push_back(id);
    return id;
  }
  // Late ones more often, so that graphs are deep.
  ir::ValueId pick() {
    const auto size = static_cast<int64_t>(values_.size());
    return values_[static_cast<size_t>(
        draw(draw(0, 2) == 0 ? 0 : std::max<int64_t>(0, size - 3), size - 1))];
  }
  ir::ValueId op(const std::string& op, std::vector<ir::ValueId> inputs, Shape shape,
                 std::map<std::string, ir::Attribute> attributes = {}) {
    return build_.op(op, std::move(inputs), fresh(op == "tenon::Slice" ? "Slice" : op),
                     std::move(shape), std::move(attributes));
  }
  ir::ValueId bounded(ir::ValueId x) { return op("Tanh", {x}, *build_.graph.value(x).shape); }

  void step() {
    const ir::ValueId x = pick();
    switch (draw(0, 11)) {
      case 0:
      case 1:
        return void(keep(bounded(product(x, width()))));
      case 2:
        return gated(x);
      case 3:
        return attention(x);
      case 4:
        return residual(x);
      case 5:
        return norm(x);
      case 6:
        return void(keep(slice(x)));
      case 7:
        return concat(x);
      case 8:
        return turned(x);
      case 9:
        return void(keep(op(draw(0, 1) == 0 ? "Neg" : "Abs", {x}, rows(width_of(x)))));
      case 10:
        return with_constant(x);
      default:
        return over_tokens(x);
    }
  }

  ir::ValueId product(ir::ValueId x, int64_t n) {
    const std::string name = fresh("dot");
    weights_.push_back(name + ".weight");
    const ir::ValueId bias =
        draw(0, 2) == 0 ? build_.constant(name + ".bias", DType::kF32, {n}) : ir::kNoValue;
    return build_.dot(x, name, n, width_of(x), bias);
  }

  void gated(ir::ValueId x) {
    const int64_t inner = width();
    const ir::ValueId gate = bounded(product(x, inner)), up = product(x, inner);
    keep(bounded(product(op("Mul", {gate, up}, rows(inner)), width_of(x))));
  }

  void residual(ir::ValueId x) {
    std::vector<ir::ValueId> same;
    for (const ir::ValueId id : values_) {
      if (width_of(id) == width_of(x)) same.push_back(id);
    }
    const ir::ValueId other = same[static_cast<size_t>(draw(0, std::ssize(same) - 1))];
    keep(op("Add", {x, other}, rows(width_of(x))));
  }

  void norm(ir::ValueId x) {
    const Shape shape = rows(width_of(x)), one = rows(1);
    const ir::ValueId squares = op("Mul", {x, x}, shape);
    const ir::ValueId mean = op("ReduceMean", {squares}, one,
                                {{"axes", std::vector<int64_t>{2}}, {"keepdims", int64_t{1}}});
    const ir::ValueId shift = build_.constant(fresh("epsilon"), DType::kF32, {}, 0.1, 0.2);
    const ir::ValueId root = op("Sqrt", {op("Add", {mean, shift}, one)}, one);
    keep(op("Div", {x, root}, shape));
  }

  ir::ValueId slice(ir::ValueId x) {
    const int64_t all = width_of(x);
    const bool halves = all % 32 == 0 || form_.weights == WeightFormat::kPlain;
    const int64_t count = halves ? std::max<int64_t>(all / 2, 1) : all;
    const std::string start = std::to_string(draw(0, 1) * (all - count));
    return op("tenon::Slice", {x}, rows(count),
              {{"starts", std::vector<std::string>{"0", "0", start}},
               {"steps", std::vector<int64_t>{1, 1, 1}}});
  }

  void concat(ir::ValueId x) {
    const ir::ValueId y = pick();
    if (width_of(x) + width_of(y) > 200) return;
    keep(op("Concat", {x, y}, rows(width_of(x) + width_of(y)), {{"axis", int64_t{2}}}));
  }

  // There and back, with something in between.
  void turned(ir::ValueId x) {
    const Dim wide = width_of(x);
    const std::vector<int64_t> perm{0, 2, 1};
    const Shape other{form_.batch, wide, form_.tokens};
    const ir::ValueId there = op("Transpose", {x}, other, {{"perm", perm}});
    keep(op("Transpose", {op("Neg", {there}, other)}, rows(wide.value()), {{"perm", perm}}));
  }

  void with_constant(ir::ValueId x) {
    const ir::ValueId by = build_.constant(fresh("gain"), DType::kF32, {width_of(x)}, 0.5, 1.5);
    keep(op("Mul", {x, by}, rows(width_of(x))));
  }

  // Needs all tokens.
  void over_tokens(ir::ValueId x) {
    const Shape one{form_.batch, 1, width_of(x)};
    const ir::ValueId largest =
        op("ReduceMax", {x}, one, {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{1}}});
    keep(op("Sub", {x, largest}, rows(width_of(x))));
  }

  ir::ValueId heads_of(ir::ValueId x, int64_t heads, int64_t size) {
    return op("Reshape", {product(x, heads * size)}, {form_.batch, form_.tokens, heads, size});
  }

  void attention(ir::ValueId x) {
    const int64_t size = 16, kv = draw(1, 4), q = kv * draw(1, 4);
    ir::Attention attention;
    attention.q = heads_of(x, q, size);
    attention.k = heads_of(x, kv, size);
    attention.v = heads_of(x, kv, size);
    attention.q_heads = q;
    attention.kv_heads = kv;
    attention.q_layout = attention.k_layout = attention.v_layout = "bshd";
    attention.y_layout = "bs(hd)";
    attention.causal_top_left = draw(0, 1) == 0;
    ir::Node node;
    attention.write_to(node);
    const ir::ValueId y =
        build_.op(node.op, node.inputs, fresh("attention"), rows(q * size), node.attributes);
    keep(draw(0, 2) == 0 ? y : bounded(product(y, width())));
  }

  DecoderGraph build_;
  DecoderForm form_;
  std::mt19937 random_;
  std::vector<ir::ValueId> values_;
  std::vector<std::string> weights_;
  int count_ = 0;
};

}  // namespace tenon::testing
