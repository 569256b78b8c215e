// Random graphs of primitives, views and Concats over a few symbolic shapes, for property tests.
#pragma once

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon::testing {

class RandomPrimitives {
 public:
  explicit RandomPrimitives(unsigned seed) : random_(seed) {
    sizes_ = {{"b", pick(1, 3)}, {"s", pick(1, 5)}};
    const Dim b = Dim::symbol("b"), s = Dim::symbol("s");
    for (const Shape& shape :
         {Shape{b, s, 4}, Shape{b, 1, 4}, Shape{s, 4}, Shape{4}, Shape{s, 1}}) {
      ir::Value value;
      value.name = "x" + std::to_string(values_.size());
      value.dtype = DType::kF32;
      value.shape = shape;
      values_.push_back(graph_.add_input(value));
    }
  }

  const SymbolSizes& sizes() const { return sizes_; }

  ir::Graph grow(int nodes) {
    while (nodes-- > 0) add_random_op();
    std::vector<ir::ValueId> outputs;
    for (ir::ValueId id = 0; id < static_cast<ir::ValueId>(graph_.value_count()); ++id) {
      const bool unused = graph_.producer(id) != nullptr && graph_.consumers(id).empty();
      if (unused || (graph_.producer(id) != nullptr && pick(0, 9) == 0)) outputs.push_back(id);
    }
    for (const ir::ValueId id : outputs) graph_.add_output(id);
    return std::move(graph_);
  }

 private:
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  ir::ValueId any() { return values_[pick(0, static_cast<int64_t>(values_.size()) - 1)]; }
  const Shape& shape(ir::ValueId id) const { return *graph_.value(id).shape; }

  void add(std::string op, std::vector<ir::ValueId> inputs, Shape to,
           std::map<std::string, ir::Attribute> attributes = {}) {
    ir::Value value;
    value.dtype = DType::kF32;
    value.shape = std::move(to);
    ir::Node node;
    node.op = std::move(op);
    node.inputs = std::move(inputs);
    node.attributes = std::move(attributes);
    values_.push_back(graph_.add_value(std::move(value)));
    node.outputs = {values_.back()};
    graph_.add_node(std::move(node));
  }

  void add_random_op() {
    constexpr std::array kOps{&RandomPrimitives::unary,     &RandomPrimitives::binary,
                              &RandomPrimitives::binary,    &RandomPrimitives::reduce,
                              &RandomPrimitives::transpose, &RandomPrimitives::expand,
                              &RandomPrimitives::slice,     &RandomPrimitives::block_expand,
                              &RandomPrimitives::reshape,   &RandomPrimitives::concat};
    (this->*kOps[pick(0, kOps.size() - 1)])();
  }

  void unary() {
    constexpr std::array kUnary{"Neg", "Abs", "Tanh", "Erf", "Floor"};
    const ir::ValueId x = any();
    add(kUnary[pick(0, kUnary.size() - 1)], {x}, shape(x));
  }

  void binary() {
    constexpr std::array kBinary{"Add", "Sub", "Mul", "Max"};
    const ir::ValueId a = any(), b = any();
    const auto to = broadcast_shapes(shape(a), shape(b));
    if (!to) return;
    // A symbol that meets another size may not match at run time.
    const auto fits = [&](const Shape& own) {
      for (size_t i = 1; i <= own.size(); ++i) {
        const Dim& dim = own[own.size() - i];
        if (!dim.is(1) && !(dim == (*to)[to->size() - i])) return false;
      }
      return true;
    };
    if (!fits(shape(a)) || !fits(shape(b))) return;
    add(kBinary[pick(0, kBinary.size() - 1)], {a, b}, *to);
  }

  void reduce() {
    constexpr std::array kReduce{"ReduceSum", "ReduceMax", "ReduceMean"};
    const ir::ValueId x = any();
    Shape to = shape(x);
    if (to.empty()) return;
    const int64_t axis = pick(0, static_cast<int64_t>(to.size()) - 1);
    to[axis] = 1;
    add(kReduce[pick(0, kReduce.size() - 1)], {x}, to,
        {{"axes", std::vector<int64_t>{axis}}, {"keepdims", int64_t{1}}});
  }

  void transpose() {
    const ir::ValueId x = any();
    std::vector<int64_t> perm;
    for (size_t axis = 0; axis < shape(x).size(); ++axis)
      perm.push_back(static_cast<int64_t>(axis));
    std::shuffle(perm.begin(), perm.end(), random_);
    Shape to;
    for (const int64_t axis : perm) to.push_back(shape(x)[axis]);
    add("Transpose", {x}, to, {{"perm", perm}});
  }

  void expand() {
    const ir::ValueId x = any();
    Shape to = shape(x);
    for (Dim& dim : to) {
      if (dim.is(1) && pick(0, 1)) dim = Dim::symbol("s");
    }
    if (to.size() < 4) to.insert(to.begin(), Dim(pick(1, 2)));
    add("Expand", {x}, to);
  }

  void slice() {
    const ir::ValueId x = any();
    Shape to = shape(x);
    std::vector<std::string> starts(to.size(), "0");
    for (size_t axis = 0; axis < to.size(); ++axis) {
      if (!to[axis].is(4) || pick(0, 1)) continue;
      starts[axis] = std::to_string(pick(0, 2));
      to[axis] = 2;
    }
    const std::vector<int64_t> steps(to.size(), 1);
    add("tenon::Slice", {x}, to, {{"starts", starts}, {"steps", steps}});
  }

  void block_expand() {
    const ir::ValueId x = any();
    Shape to = shape(x);
    if (to.empty()) return;
    const int64_t axis = static_cast<int64_t>(to.size()) - 1;
    to[axis] = to[axis] * 2;
    if (to[axis].is_constant() && to[axis].value() > 8) return;
    add("tenon::BlockExpand", {x}, to, {{"axis", axis}, {"block", int64_t{2}}});
  }

  void reshape() {
    const ir::ValueId x = any();
    Shape to = shape(x);
    if (pick(0, 1) && to.size() > 1) {
      to[1] = to[0] * to[1];
      to.erase(to.begin());
    } else if (to.size() < 4) {
      to.insert(to.begin() + pick(0, static_cast<int64_t>(to.size())), Dim(1));
    }
    add("Reshape", {x}, to);
  }

  void concat() {
    const ir::ValueId a = any();
    if (shape(a).empty() || pick(0, 2)) return;
    Shape to = shape(a);
    to[0] = to[0] * 2;
    add("Concat", {a, a}, to, {{"axis", int64_t{0}}});
  }

  std::mt19937 random_;
  SymbolSizes sizes_;
  ir::Graph graph_;
  std::vector<ir::ValueId> values_;
};

}  // namespace tenon::testing
