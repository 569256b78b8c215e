// What a shape rule sees, sets and asks for. A rule that lacks a fact returns without setting
// anything; one that sets a shape also states what the operator asks of the sizes it reads.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon {

class NodeFacts {
 public:
  NodeFacts(const ir::Graph& graph, const ir::Node& node)
      : graph_(graph), node_(node), shapes_(node.outputs.size()), elements_(node.outputs.size()) {}

  const ir::Graph& graph() const { return graph_; }
  const ir::Node& node() const { return node_; }
  size_t input_count() const { return node_.inputs.size(); }
  bool has_input(size_t index) const { return node_.input(index) != ir::kNoValue; }
  const Shape* shape(size_t index) const;  // null: unknown or absent
  DType dtype(size_t index) const;
  DType output_dtype(size_t index) const;
  const std::string& output_name(size_t index) const;
  const Shape* given_shape(size_t output) const;  // what the output has already
  // Elements of an integer tensor: a small constant's, or what shape arithmetic knows.
  std::optional<std::vector<Dim>> elements(size_t index) const;
  // The one element of a tensor of any type that is a whole number: a constant's, what shape
  // arithmetic knows, or that behind a Cast to floats, which must hold it exactly.
  std::optional<Dim> whole_number(size_t index);
  std::optional<std::vector<int64_t>> integers(size_t index) const;
  ir::TensorPtr constant(size_t index) const;
  // The list in attribute `name`, or else in input `index`; nullopt when neither is known.
  std::optional<std::vector<int64_t>> integers_from(std::string_view name, size_t index) const;

  // Whether `dim` is never below 0: by itself, as a size of an input, or by what the graph asks of
  // every Run already (a convolution's result has no negative size).
  bool is_size(const Dim& dim) const;

  // Asks for a relation between two sizes. What always holds is forgotten; what never does is a
  // contradiction in the model: the node's outputs get no shape, so that nobody claims it and the
  // runtime reports it.
  void require(const Dim& left, ir::Relation relation, const Dim& right);
  void require_equal(const Dim& left, const Dim& right) {
    require(left, ir::Relation::kEqual, right);
  }
  // Of an operand that is there and whose rank is known: this rank, and these sizes.
  void require_shape(size_t index, const Shape& wanted);
  // Of the same kind of operand: it broadcasts to `wide` without making it larger.
  void require_stretches(size_t index, const Shape& wide);
  void require_elements(size_t index, const Dim& count);
  // Every two of the shapes broadcast with each other.
  void require_broadcast(const std::vector<Shape>& shapes);
  void contradict(std::string why) { contradiction_ = std::move(why); }

  void set_shape(size_t output, Shape shape);
  void set_elements(size_t output, std::vector<Dim> elements);
  const std::vector<std::optional<Shape>>& shapes() const { return shapes_; }
  const std::vector<std::optional<std::vector<Dim>>>& new_elements() const { return elements_; }
  const std::vector<ir::Requirement>& requirements() const { return requirements_; }
  // Why the model contradicts itself; nullopt: it does not.
  const std::optional<std::string>& contradiction() const { return contradiction_; }

 private:
  void contradict_rank(size_t index, size_t wanted);

  const ir::Graph& graph_;
  const ir::Node& node_;
  std::vector<std::optional<Shape>> shapes_;
  std::vector<std::optional<std::vector<Dim>>> elements_;
  std::vector<ir::Requirement> requirements_;
  std::optional<std::string> contradiction_;
};

struct ShapeRule {
  std::string_view op;
  void (*infer)(NodeFacts&);
  // Bit i: the size of output i follows from no operand, and what the model says is taken.
  unsigned declared_outputs = 0;
};

// One table per family of ops; infer_shapes.cc joins them.
std::span<const ShapeRule> pointwise_shape_rules();
std::span<const ShapeRule> movement_shape_rules();
std::span<const ShapeRule> slicing_shape_rules();
std::span<const ShapeRule> dot_shape_rules();
std::span<const ShapeRule> attention_shape_rules();
std::span<const ShapeRule> collective_shape_rules();
std::span<const ShapeRule> window_shape_rules();  // convolution, pooling, recurrent
std::span<const ShapeRule> quantize_shape_rules();
std::span<const ShapeRule> other_shape_rules();  // of what nobody here runs
// Rules that set elements, run after the op's shape rule.
std::span<const ShapeRule> element_rules();

// Tensors longer than this are data, not shapes.
inline constexpr size_t kMaxElements = 256;

std::optional<std::vector<Dim>> integer_elements(const ir::Tensor& tensor);
// Of a Cast of floats to integers, where these are numbers that were computed from sizes. Asks that
// no step is one that floats round.
std::optional<std::vector<Dim>> truncated_elements(NodeFacts& facts);

// 0 <= axis < rank, counted from the end where negative; nullopt when out of range.
std::optional<size_t> normal_axis(int64_t axis, size_t rank);
// Sorted, unique and non-negative; nullopt when one is out of range.
std::optional<std::vector<size_t>> normal_axes(const std::vector<int64_t>& axes, size_t rank);
// Symbols stand for sizes: a dim without a way below 0.
bool never_negative(const Dim& dim);
// nullopt where two fixed dims clash.
std::optional<Shape> broadcast_all(const std::vector<Shape>& shapes);

// Indices along `axis` stand at places that data has on all other axes.
void require_inside(NodeFacts& facts, const Shape& indices, const Shape& data, int64_t axis);

// What [start:end:step] means on an axis of size `dim`: where it begins and how many it takes.
struct SliceExtent {
  Dim start, size;
};
// `is_size`: what is known never to be negative.
using IsSize = std::function<bool(const Dim&)>;
std::optional<SliceExtent> slice_extent(const Dim& start, const Dim& end, int64_t step,
                                        const Dim& dim, const IsSize& is_size = never_negative);

// All axes of a Slice node: [starts : : steps] taking `sizes` elements.
struct SliceRegion {
  Shape starts, sizes;
  std::vector<int64_t> steps;
};
std::optional<SliceRegion> slice_region(const NodeFacts& facts);

}  // namespace tenon
