#include "graph_partitioner/passes/split_dots.h"

#include <algorithm>
#include <optional>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/passes/move.h"

namespace tenon {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ScaledDot;
using ir::TensorPtr;
using ir::ValueId;

struct Columns {
  int64_t first = 0, count = 0;
};

// Those of `rows` equal runs of a tensor; nothing where runs are no whole bytes, or no dim tells
// them apart.
TensorPtr piece_of(const ir::Tensor& tensor, int64_t rows, const Columns& wanted) {
  const auto dim = std::ranges::find_if(tensor.dims, [](int64_t size) { return size != 1; });
  const auto bytes = static_cast<int64_t>(tensor.bytes);
  if (dim == tensor.dims.end() || *dim % rows != 0 || bytes % rows != 0) return nullptr;
  if (tensor.elements() * bit_width(tensor.dtype) != bytes * 8) return nullptr;
  auto piece = std::make_shared<ir::Tensor>(tensor);
  piece->dims[static_cast<size_t>(dim - tensor.dims.begin())] = *dim / rows * wanted.count;
  piece->data += bytes / rows * wanted.first;
  piece->bytes = static_cast<size_t>(bytes / rows * wanted.count);
  return piece;
}

// The view that stands between a product and its slices, as how many columns one step of its axis
// is.
struct Sliced {
  size_t axis = 0;
  int64_t width = 1;
};

class Splitter {
 public:
  Splitter(Graph& graph, NodeId id) : graph_(graph), node_(graph.node(id)) {
    dot_ = ScaledDot::from(node_);
    whole_ = node_.output(0);
  }

  bool run(const SupportsFn& supports) {
    take_bias();
    if (!is_splittable() || !find_slices() || !make_parts()) return false;
    Node merged;
    parts_.write_to(merged, graph_);
    if (!supports(graph_, merged)) return false;
    replace();
    return true;
  }

 private:
  // A constant for each column, added by the result's only reader, is a bias.
  void take_bias() {
    const auto& shape = graph_.value(whole_).shape;
    if (dot_.bias != kNoValue || node_.body || !shape || shape->empty() ||
        !graph_.has_one_use(whole_)) {
      return;
    }
    const Node& reader = graph_.node(graph_.consumers(whole_).front());
    if (!reader.is("Add")) return;
    const ValueId added = reader.input(reader.input(0) == whole_ ? 1 : 0);
    const auto& columns = graph_.value(added).shape;
    if (!graph_.value(added).is_constant() || !columns || *columns != Shape{shape->back()}) return;
    dot_.bias = added;
    node_.sources = ir::merge_sources(node_.sources, reader.sources);
    whole_ = reader.output(0);
  }

  bool is_splittable() const {
    const auto& shape = graph_.value(node_.output(0)).shape;
    if (node_.outputs.size() != 1 || node_.body || !dot_.b_k_last || !shape || shape->empty() ||
        !shape->back().is_constant() || !graph_.value(dot_.b).is_constant()) {
      return false;
    }
    // A bias may differ from row to row.
    const TensorPtr bias = dot_.bias == kNoValue ? nullptr : graph_.value(dot_.bias).constant;
    return dot_.bias == kNoValue || (bias && bias->elements() == columns());
  }

  int64_t columns() const { return graph_.value(node_.output(0)).shape->back().value(); }

  // All readers of the result are slices along its columns, of itself or of one view.
  bool find_slices() {
    ValueId whole = whole_;
    Sliced sliced{graph_.value(whole).shape->size() - 1, 1};
    std::vector<NodeId> readers = graph_.consumers(whole);
    if (readers.size() == 1 && graph_.node(readers[0]).is("Reshape") && !graph_.is_output(whole)) {
      const auto view = viewed(graph_.node(readers[0]));
      if (!view) return false;
      sliced = *view;
      view_ = readers[0];
      whole = graph_.node(readers[0]).output(0);
      readers = graph_.consumers(whole);
    }
    if (graph_.is_output(whole) || readers.size() < 2) return false;
    for (const NodeId reader : readers) {
      const auto taken = columns_of(reader, whole, sliced);
      if (!taken) return false;
      slices_.push_back(reader);
      columns_.push_back(*taken);
    }
    return is_partition();
  }

  // [.., N] as [.., H, D].
  std::optional<Sliced> viewed(const Node& view) const {
    const auto& from = *graph_.value(node_.output(0)).shape;
    const auto& to = graph_.value(view.output(0)).shape;
    if (view.inputs.size() != 1 || !to || to->size() != from.size() + 1) return std::nullopt;
    if (!std::equal(from.begin(), from.end() - 1, to->begin())) return std::nullopt;
    if (!to->back().is_constant()) return std::nullopt;
    return Sliced{to->size() - 2, to->back().value()};
  }

  std::optional<Columns> columns_of(NodeId reader, ValueId whole, const Sliced& sliced) const {
    const auto move = Move::of(graph_, graph_.node(reader));
    if (!move || move->kind != Move::Kind::kSlice) return std::nullopt;
    const Shape& shape = *graph_.value(whole).shape;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (move->steps[axis] != 1) return std::nullopt;
      if (axis == sliced.axis) continue;
      if (!move->starts[axis].is(0) || !(move->result[axis] == shape[axis])) return std::nullopt;
    }
    const Dim &start = move->starts[sliced.axis], &count = move->result[sliced.axis];
    if (!start.is_constant() || !count.is_constant()) return std::nullopt;
    return Columns{start.value() * sliced.width, count.value() * sliced.width};
  }

  // Every column is in one slice.
  bool is_partition() const {
    std::vector<Columns> sorted = columns_;
    std::ranges::sort(sorted, {}, &Columns::first);
    int64_t next = 0;
    for (const Columns& part : sorted) {
      if (part.first != next || part.count <= 0) return false;
      next += part.count;
    }
    return next == columns();
  }

  bool make_parts() {
    for (size_t i = 0; i < slices_.size(); ++i) {
      ScaledDot part = dot_;
      const bool cut =
          cut_to(part.b, columns_[i]) && cut_to(part.bias, columns_[i]) &&
          (!dot_.scale_b.per_channel || (cut_to(part.scale_b.scale, columns_[i]) &&
                                         cut_to(part.scale_b.zero_point, columns_[i])));
      if (!cut) return false;
      if (!part.b_dims.empty()) part.b_dims[0] = columns_[i].count;
      Node node = node_;
      part.write_to(node);
      node.outputs = {result_of(i)};
      node.sources = ir::merge_sources(node.sources, graph_.node(slices_[i]).sources);
      parts_.dots.push_back(std::move(node));
    }
    return true;
  }

  bool cut_to(ValueId& id, const Columns& wanted) {
    if (id == kNoValue) return true;
    if (!graph_.value(id).is_constant()) return false;
    const TensorPtr piece = piece_of(*graph_.value(id).constant, columns(), wanted);
    if (piece) id = graph_.add_constant(graph_.value(id).name, piece);
    return piece != nullptr;
  }

  ValueId result_of(size_t i) {
    const ValueId slice = graph_.node(slices_[i]).output(0);
    if (!view_) return slice;
    ir::Value result;
    result.name = graph_.value(slice).name;
    result.dtype = graph_.value(slice).dtype;
    result.shape = graph_.value(node_.output(0)).shape;
    result.shape->back() = columns_[i].count;
    return graph_.add_value(std::move(result));
  }

  void replace() {
    for (size_t i = 0; i < slices_.size(); ++i) {
      const Node slice = graph_.node(slices_[i]);
      const ValueId result = parts_.dots[i].output(0);
      graph_.node(slices_[i]).outputs.clear();
      graph_.insert_before(slices_[i], parts_.dots[i]);
      if (!view_) continue;
      Node view = graph_.node(*view_);
      view.inputs = {result};
      view.outputs = slice.outputs;
      graph_.insert_before(slices_[i], std::move(view));
    }
    graph_.remove_dead_nodes();
    graph_.sort_topologically();
  }

  Graph& graph_;
  Node node_;
  ScaledDot dot_;
  ValueId whole_ = kNoValue;  // the result that slices are of, with its bias
  std::optional<NodeId> view_;
  std::vector<NodeId> slices_;
  std::vector<Columns> columns_;  // of each slice
  ir::MergedDots parts_;
};

}  // namespace

void split_dots(Graph& graph, const SupportsFn& supports) {
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (graph.node(id).is(ir::kScaledDot)) Splitter(graph, id).run(supports);
  }
}

}  // namespace tenon
