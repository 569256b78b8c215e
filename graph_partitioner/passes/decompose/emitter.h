// Writes the primitives that replace one node: each call inserts an op before that node, with its
// dtype and (where operands' shapes are known) its shape. Two calls are never arguments of a third:
// compilers differ in which comes first, and graphs must not.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon::decomposition {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

class Emitter {
 public:
  Emitter(Graph& graph, NodeId position) : graph_(graph), position_(position) {}

  DType dtype(ValueId id) const { return graph_.value(id).dtype; }
  // Copies: emitting moves the graph's storage.
  std::optional<Shape> shape(ValueId id) const { return graph_.value(id).shape; }
  ir::Value value(ValueId id) const { return graph_.value(id); }
  bool is_used(ValueId id) const;
  // Elements known now: of a constant, or as dims from shape arithmetic.
  std::optional<std::vector<Dim>> known_elements(ValueId id) const;

  ValueId scalar(DType dtype, double value);
  ValueId constant(const ir::TensorPtr& tensor, std::vector<int64_t> dims);  // the same elements
  ValueId scalar_like(ValueId like, double value) { return scalar(dtype(like), value); }

  ValueId unary(std::string_view op, ValueId x);
  ValueId binary(std::string_view op, ValueId a, ValueId b);
  ValueId binary(std::string_view op, ValueId a, double b) {
    return binary(op, a, scalar_like(a, b));
  }
  ValueId compare(std::string_view op, ValueId a, ValueId b);
  ValueId compare(std::string_view op, ValueId a, double b) {
    return compare(op, a, scalar_like(a, b));
  }
  ValueId where(ValueId condition, ValueId yes, ValueId no);
  ValueId cast(ValueId x, DType to);  // x itself where nothing changes
  ValueId cast(ValueId x, DType to, std::map<std::string, ir::Attribute> attributes);
  // f32 for the narrower floats: constants and intermediates keep their precision.
  ValueId widen(ValueId x);
  ValueId reduce(std::string_view op, ValueId x, std::vector<int64_t> axes);
  ValueId position(const Shape& shape, int64_t axis);  // i64
  ValueId dim_value(const Dim& dim, DType dtype);
  ValueId quantize(ValueId x, ValueId zero_point, DType to, bool saturate);

  ValueId reshape(ValueId x, Shape to);  // x itself where nothing changes
  ValueId transpose(ValueId x, std::vector<int64_t> perm);
  ValueId expand(ValueId x, Shape to);
  ValueId slice(ValueId x, std::vector<Dim> starts, std::vector<int64_t> steps, Shape to);
  ValueId block_expand(ValueId x, int64_t axis, int64_t block, const Dim& size);
  // Negative indices count from the end, or fail the Run.
  ValueId gather(ValueId data, ValueId indices, int64_t axis, bool from_end = true);
  // tenon::Pick: what is left of the data broadcasts with the indices, which are as gather()'s.
  ValueId pick(ValueId data, ValueId indices, int64_t axis, bool from_end = true);
  ValueId pad(ValueId x, std::vector<Dim> begins, ValueId fill, Shape to);
  // Any op with one output; name and sources are those of the node being replaced.
  ValueId emit(Node node, DType dtype, std::optional<Shape> shape);
  // The same bytes as another type of the same width: a view, or a constant relabelled.
  ValueId bitcast(ValueId x, DType to);
  // A constant's bytes under other dims or another type; kNoValue unless x is a constant.
  ValueId relabel(ValueId x, DType dtype, std::vector<int64_t> dims);

 private:
  void require(const Dim& left, ir::Relation relation, const Dim& right);
  std::optional<Shape> broadcast(const std::vector<ValueId>& operands) const;

  Graph& graph_;
  NodeId position_;
};

// A negative axis counts from the end; nullopt when it is out of range or the rank is unknown.
std::optional<int64_t> normal_axis(int64_t axis, const std::optional<Shape>& shape);
// first, first+1, …, last-1.
std::vector<int64_t> axes_between(int64_t first, int64_t last);

}  // namespace tenon::decomposition
