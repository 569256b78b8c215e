// Random loops for property tests: a domain of odd and even sizes, fixed or symbolic, inputs read
// through random movement, arithmetic with reductions, and outputs of random types.
#pragma once

#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/graph.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon::testing {

class RandomLoop {
 public:
  explicit RandomLoop(unsigned seed) : random_(seed) { choose_domain(); }

  const SymbolSizes& sizes() const { return sizes_; }

  // A graph of one Loop whose results need a tolerance.
  ir::Graph arithmetic() {
    choose_reduced_axes();
    std::vector<ir::ValueId> values;
    for (int64_t inputs = pick(1, 3); inputs > 0; --inputs) {
      values.push_back(as_f32(moved_input(pick_from(kInputTypes))));
    }
    for (int64_t ops = pick(1, 7); ops > 0; --ops) values.push_back(random_op(values));
    ir::ValueId full = pointwise("Add", {whole_.back(), values.back()}, DType::kF32, domain_);
    if (pick(0, 3) == 0) full = pointwise("Cast", {full}, DType::kF16, domain_);
    outputs_.push_back(full);
    if (!reduced_.empty() && pick(0, 1)) outputs_.push_back(reduce(values.front()));
    return finish();
  }

  // A graph of one Loop that only moves elements: exact for every type.
  ir::Graph movement() {
    constexpr std::array kTypes{DType::kF32,    DType::kF16,      DType::kI64, DType::kI8,
                                DType::kF4E2M1, DType::kF8E4M3FN, DType::kU4,  DType::kI4,
                                DType::kU2,     DType::kBool,     DType::kF64, DType::kBF16};
    whole_only_ = true;
    outputs_.push_back(moved_input(pick_from(kTypes)));
    return finish();
  }

 private:
  static constexpr std::array kInputTypes{DType::kF32, DType::kF32, DType::kF32,   DType::kF16,
                                          DType::kI8,  DType::kU4,  DType::kF8E5M2};

  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  template <typename List>
  typename List::value_type pick_from(const List& list) {
    return list[pick(0, static_cast<int64_t>(list.size()) - 1)];
  }

  void choose_domain() {
    constexpr std::array<int64_t, 14> kSizes{1, 2, 3, 4, 7, 8, 12, 16, 17, 31, 32, 33, 64, 100};
    int64_t volume = 1;
    for (int64_t rank = pick(1, 4), axis = 0; axis < rank; ++axis) {
      int64_t size = pick_from(kSizes);
      while (volume * size > 20000) size = (size + 1) / 2;
      volume *= size;
      if (pick(0, 1)) {
        const std::string symbol = "d" + std::to_string(axis);
        sizes_[symbol] = size;
        domain_.push_back(Dim::symbol(symbol));
      } else {
        domain_.push_back(size);
      }
    }
  }

  void choose_reduced_axes() {
    if (pick(0, 2) == 0) return;
    for (size_t axis = 0; axis < domain_.size(); ++axis) {
      if (pick(0, 1)) reduced_.push_back(static_cast<int64_t>(axis));
    }
  }

  ir::ValueId pointwise(std::string op, std::vector<ir::ValueId> operands, DType dtype, Shape shape,
                        std::map<std::string, ir::Attribute> attributes = {}) {
    ir::Value value;
    value.name = "v";
    value.dtype = dtype;
    value.shape = std::move(shape);
    const ir::ValueId id = body_.add_value(std::move(value));
    ir::Node node;
    node.op = std::move(op);
    node.inputs = std::move(operands);
    node.attributes = std::move(attributes);
    node.outputs = {id};
    body_.add_node(std::move(node));
    if (body_.value(id).shape == domain_) whole_.push_back(id);
    return id;
  }

  ir::ValueId new_input(DType dtype, Shape shape) {
    ir::Value value;
    value.name = "x";
    value.dtype = dtype;
    value.shape = std::move(shape);
    return body_.add_input(std::move(value));
  }

  // Has the domain's size, or 1 along some axes.
  ir::ValueId moved_input(DType dtype) {
    Shape shape = domain_;
    if (!whole_only_ && !whole_.empty()) {
      for (Dim& dim : shape) {
        if (pick(0, 3) == 0) dim = 1;
      }
    }
    return move_to(dtype, shape, static_cast<int>(pick(0, 2)));
  }

  ir::ValueId move_to(DType dtype, const Shape& shape, int steps) {
    if (steps == 0) {
      const ir::ValueId id = new_input(dtype, shape);
      if (shape == domain_) whole_.push_back(id);
      return id;
    }
    switch (pick(0, 3)) {
      case 0:
        return transposed(dtype, shape, steps);
      case 1:
        return sliced(dtype, shape, steps);
      case 2:
        return repeated(dtype, shape, steps);
      default:
        return padded(dtype, shape, steps);
    }
  }

  ir::ValueId transposed(DType dtype, const Shape& shape, int steps) {
    std::vector<int64_t> perm;
    for (size_t axis = 0; axis < shape.size(); ++axis) perm.push_back(static_cast<int64_t>(axis));
    std::shuffle(perm.begin(), perm.end(), random_);
    Shape from(shape.size());
    for (size_t axis = 0; axis < shape.size(); ++axis) from[perm[axis]] = shape[axis];
    return pointwise("Transpose", {move_to(dtype, from, steps - 1)}, dtype, shape,
                     {{"perm", perm}});
  }

  ir::ValueId sliced(DType dtype, const Shape& shape, int steps) {
    Shape from = shape;
    std::vector<std::string> starts;
    std::vector<int64_t> strides;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const int64_t step = pick(0, 2) == 0 ? pick(1, 2) * (pick(0, 1) ? 1 : -1) : 1;
      const int64_t before = pick(0, 2);
      from[axis] = shape[axis] * std::abs(step) + Dim(before);
      starts.push_back((step > 0 ? Dim(before) : from[axis] - Dim(1)).text());
      strides.push_back(step);
    }
    return pointwise("tenon::Slice", {move_to(dtype, from, steps - 1)}, dtype, shape,
                     {{"starts", starts}, {"steps", strides}});
  }

  ir::ValueId repeated(DType dtype, const Shape& shape, int steps) {
    const int64_t axis = pick(0, static_cast<int64_t>(shape.size()) - 1);
    const int64_t block = pick_from(std::array<int64_t, 4>{2, 3, 16, 32});
    if (!mod(shape[axis], Dim(block)).is(0)) return move_to(dtype, shape, steps - 1);
    Shape from = shape;
    from[axis] = floor_div(shape[axis], Dim(block));
    return pointwise("tenon::BlockExpand", {move_to(dtype, from, steps - 1)}, dtype, shape,
                     {{"axis", axis}, {"block", block}});
  }

  // Only fixed sizes can shrink.
  ir::ValueId padded(DType dtype, const Shape& shape, int steps) {
    Shape from = shape;
    std::vector<std::string> begins;
    for (Dim& dim : from) {
      const bool shrinks = dim.is_constant() && dim.value() > 4;
      const int64_t before = shrinks ? pick(0, 2) : 0;
      if (shrinks) dim = dim - Dim(before + pick(0, 1));
      begins.push_back(std::to_string(before));
    }
    const ir::ValueId inner = move_to(dtype, from, steps - 1);
    const ir::ValueId fill = new_input(dtype, {});
    return pointwise("tenon::Pad", {inner, fill}, dtype, shape, {{"pads_begin", begins}});
  }

  ir::ValueId as_f32(ir::ValueId id) {
    if (body_.value(id).dtype == DType::kF32) return id;
    return pointwise("Cast", {id}, DType::kF32, *body_.value(id).shape);
  }

  ir::ValueId reduce(ir::ValueId x) {
    // The operand must have the domain's size along the reduced axes.
    if (*body_.value(x).shape != domain_ || body_.value(x).dtype != DType::kF32) {
      x = pointwise("Add", {as_f32(whole_.front()), as_f32(x)}, DType::kF32, domain_);
    }
    Shape shape = domain_;
    for (int64_t axis : reduced_) shape[axis] = 1;
    constexpr std::array kOps{"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"};
    return pointwise(pick_from(kOps), {x}, DType::kF32, shape,
                     {{"axes", reduced_}, {"keepdims", int64_t{1}}});
  }

  ir::ValueId random_op(const std::vector<ir::ValueId>& values) {
    const ir::ValueId x = pick_from(values), y = pick_from(values);
    if (!reduced_.empty() && pick(0, 2) == 0) return reduce(x);
    constexpr std::array kUnary{"Neg", "Abs", "Tanh", "Erf"};
    constexpr std::array kBinary{"Add", "Sub", "Max", "Min"};
    if (pick(0, 1)) return pointwise(pick_from(kUnary), {x}, DType::kF32, *body_.value(x).shape);
    return pointwise(pick_from(kBinary), {x, y}, DType::kF32,
                     *broadcast_shapes(*body_.value(x).shape, *body_.value(y).shape));
  }

  ir::Graph finish() {
    ir::Graph graph;
    ir::Node loop;
    loop.op = std::string(ir::kLoop);
    loop.name = "loop";
    for (ir::ValueId id : body_.inputs()) {
      ir::Value value;
      value.name = body_.value(id).name;
      value.dtype = body_.value(id).dtype;
      value.shape = body_.value(id).shape;
      loop.inputs.push_back(graph.add_input(std::move(value)));
    }
    for (ir::ValueId id : outputs_) {
      body_.add_output(id);
      ir::Value value;
      value.name = "y";
      value.dtype = body_.value(id).dtype;
      value.shape = body_.value(id).shape;
      loop.outputs.push_back(graph.add_value(std::move(value)));
    }
    body_.remove_dead_nodes();
    loop.body = std::make_shared<const ir::Graph>(std::move(body_));
    const std::vector<ir::ValueId> outputs = loop.outputs;
    graph.add_node(std::move(loop));
    for (ir::ValueId id : outputs) graph.add_output(id);
    return graph;
  }

  std::mt19937 random_;
  SymbolSizes sizes_;
  Shape domain_;
  std::vector<int64_t> reduced_;
  bool whole_only_ = false;
  ir::Graph body_;
  std::vector<ir::ValueId> whole_;  // values of the domain's own shape
  std::vector<ir::ValueId> outputs_;
};

}  // namespace tenon::testing
