#include "graph_partitioner/passes/store_channels_last.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph_partitioner/ir/channels_last.h"
#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/passes/decompose/emitter.h"
#include "graph_partitioner/passes/pool_by_slices.h"

namespace tenon {
namespace {

using decomposition::Emitter;
using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::PrimitiveClass;
using ir::ValueId;

constexpr int64_t kBytesAtOnce = 16;  // that tensor cores read of one pixel's channels
constexpr size_t kFilter = 1;

bool is_one(const Dim& dim) { return dim.is(1); }

// Both orders are the same bytes.
bool is_view(const Shape& first) {
  return first[1].is(1) || std::all_of(first.begin() + 2, first.end(), is_one);
}

// The same filters with channels of zeros behind theirs.
ir::TensorPtr with_more_channels(const ir::Tensor& w, int64_t channels) {
  std::vector<int64_t> dims = w.dims;
  const size_t filter = w.bytes / static_cast<size_t>(dims[0]);
  const size_t wanted = filter / static_cast<size_t>(dims[1]) * static_cast<size_t>(channels);
  dims[1] = channels;
  std::vector<std::byte> bytes(wanted * static_cast<size_t>(dims[0]));
  for (size_t i = 0; i < static_cast<size_t>(dims[0]); ++i) {
    std::memcpy(bytes.data() + i * wanted, w.data + i * filter, filter);
  }
  return ir::Tensor::copy(w.dtype, std::move(dims), bytes);
}

class Storing {
 public:
  Storing(Graph& graph, const SupportsFn& supports) : graph_(graph), supports_(supports) {}

  void run() {
    for (const NodeId id : std::vector<NodeId>(graph_.order())) visit(id);
  }

 private:
  void visit(NodeId id) {
    const Node node = graph_.node(id);
    if (node.outputs.size() != 1) return;
    const auto& shape = graph_.value(node.output(0)).shape;
    if (!shape || shape->size() < 4 || shape->size() > 5) return;
    rank_ = shape->size();
    if (node.is("Conv") || node.is("com.microsoft::FusedConv")) return convolution(id, node);
    if (node.is("MaxPool") || node.is("AveragePool")) return pooling(id, node);
    if (ir::is_primitive(node.op, PrimitiveClass::kPointwise)) return pointwise(id, node);
    if (ir::is_primitive(node.op, PrimitiveClass::kReduction)) return reduction(id, node);
    if (node.is("Concat")) return concat(id, node);
    movement(id, node);
  }

  // ---- values

  bool is_stored_last(ValueId id) const { return last_.contains(id); }

  // `value`, of the rank of the result, with its channels last.
  ValueId last(NodeId before, ValueId value) {
    if (const auto found = last_.find(value); found != last_.end()) return found->second;
    if (const auto found = turned_.find(value); found != turned_.end()) return found->second;
    Emitter emit(graph_, before);
    const Shape first = *graph_.value(value).shape;
    const std::vector<int64_t> perm = ir::to_channels_last(first.size());
    const ValueId made = is_view(first) ? emit.reshape(value, ir::permuted(first, perm))
                                        : emit.transpose(value, perm);
    return turned_[value] = made;
  }

  // What broadcasts into a result with its channels last; kNoValue: a whole operand that would
  // have to be turned around.
  ValueId last_operand(NodeId before, ValueId value, const Shape& result) {
    if (value == kNoValue || is_stored_last(value)) return value == kNoValue ? value : last_[value];
    if (!graph_.value(value).shape) return kNoValue;
    Shape shape = *graph_.value(value).shape;
    if (std::ranges::all_of(shape, is_one)) return value;
    shape.insert(shape.begin(), result.size() - shape.size(), Dim(1));
    if (shape == result && !is_view(shape)) return kNoValue;
    Emitter emit(graph_, before);
    return last(before, emit.reshape(value, shape));
  }

  // `made`, with its inputs, computes what the node does in the other order; the node turns it
  // around for whoever still reads its result.
  void replace(NodeId id, Node made) {
    const ir::Value result = graph_.value(graph_.node(id).output(0));
    const ValueId value = add_result(result, ir::to_channels_last(rank_));
    made.outputs = {value};
    graph_.insert_before(id, std::move(made));
    turn_around(id, value);
  }

  // The node reads its result from `value`, which has its channels last.
  void turn_around(NodeId id, ValueId value) {
    last_[graph_.node(id).output(0)] = value;
    const ir::Value result = graph_.value(graph_.node(id).output(0));
    Node& turn = graph_.node(id);
    turn.inputs = {value};
    turn.attributes.clear();
    turn.since_version = 0;
    if (is_view(*result.shape)) {
      turn.op = "Reshape";
    } else {
      turn.op = "Transpose";
      turn.attributes["perm"] = ir::to_channels_first(rank_);
    }
  }

  ValueId add_result(const ir::Value& first, const std::vector<int64_t>& perm) {
    ir::Value value;
    value.name = first.name + "_last";
    value.dtype = first.dtype;
    value.shape = ir::permuted(*first.shape, perm);
    return graph_.add_value(std::move(value));
  }

  int64_t axis_last(int64_t axis) const {
    if (axis < 0) axis += static_cast<int64_t>(rank_);
    const std::vector<int64_t> perm = ir::to_channels_last(rank_);
    return std::ranges::find(perm, axis) - perm.begin();
  }

  // ---- windows

  bool is_supported(Node node, const Node& like) {
    node.outputs = {add_result(graph_.value(like.output(0)), ir::to_channels_last(rank_))};
    return static_cast<bool>(supports_(graph_, node));
  }

  void convolution(NodeId id, const Node& node) {
    if (!graph_.value(node.input(0)).shape) return;
    if (graph_.value(node.input(0)).shape->size() != rank_) return;
    Node made = node;
    made.op = ir::kChannelsLastConv;
    made.since_version = 1;
    made.inputs[0] = last(id, node.input(0));
    if (node.input(3) != kNoValue) made.inputs[3] = last(id, node.input(3));
    if (const auto padded = with_padded_channels(id, node, made)) {
      if (is_supported(*padded, node)) return replace(id, *padded);
    }
    if (is_supported(made, node)) replace(id, std::move(made));
  }

  // Few channels that the pass turns around itself, or nullopt.
  std::optional<Node> with_padded_channels(NodeId id, const Node& node, Node made) {
    const ValueId x = node.input(0);
    const ir::Value w = graph_.value(node.input(kFilter));
    if (is_stored_last(x) || node.integer("group", 1) != 1) return std::nullopt;
    if (!w.is_constant() || !w.constant->stands_for.empty()) return std::nullopt;
    const int64_t channels = w.constant->dims.at(1);
    const int64_t wanted = kBytesAtOnce / std::max<int64_t>(storage_bytes(w.dtype, 1), 1);
    if (channels < 1 || channels >= wanted || w.constant->dims[0] < 1) return std::nullopt;
    Emitter emit(graph_, id);
    Shape to = *graph_.value(made.inputs[0]).shape;
    if (!to.back().is(channels)) return std::nullopt;
    to.back() = wanted;
    const ValueId zero = emit.scalar(w.dtype, 0);
    made.inputs[0] = emit.pad(made.inputs[0], std::vector<Dim>(rank_, 0), zero, to);
    made.inputs[kFilter] = graph_.add_constant(w.name, with_more_channels(*w.constant, wanted));
    made.attributes[std::string(ir::kPaddedFrom)] = channels;
    return made;
  }

  // Alone it gains nothing.
  void pooling(NodeId id, const Node& node) {
    if (!is_stored_last(node.input(0))) return;
    Emitter emit(graph_, id);
    const Shape y = ir::permuted(*graph_.value(node.output(0)).shape, ir::to_channels_last(rank_));
    const ValueId pooled = pool_by_slices(emit, node, last_[node.input(0)], y);
    if (pooled != kNoValue) turn_around(id, pooled);
  }

  // ---- what stands between them

  bool has_result_rank(ValueId id) const {
    const auto& shape = graph_.value(id).shape;
    return shape && shape->size() == rank_;
  }

  void pointwise(NodeId id, const Node& node) {
    const auto is_last = [&](ValueId input) { return is_stored_last(input); };
    if (node.is("tenon::Quantize") || std::ranges::none_of(node.inputs, is_last)) return;
    const Shape result = *graph_.value(node.output(0)).shape;
    Node made = node;
    for (ValueId& input : made.inputs) {
      if (input == kNoValue) continue;
      input = last_operand(id, input, result);
      if (input == kNoValue) return;
    }
    replace(id, std::move(made));
  }

  void reduction(NodeId id, const Node& node) {
    if (!is_stored_last(node.input(0)) || node.is("ArgMax") || node.is("ArgMin")) return;
    if (node.integer("keepdims", 1) != 1 || !node.has("axes")) return;
    std::vector<int64_t> axes = node.integers("axes");
    for (int64_t& axis : axes) axis = axis_last(axis);
    std::ranges::sort(axes);
    Node made = node;
    made.inputs[0] = last_[node.input(0)];
    made.attributes["axes"] = std::move(axes);
    replace(id, std::move(made));
  }

  void concat(NodeId id, const Node& node) {
    const auto is_last = [&](ValueId input) { return is_stored_last(input); };
    if (!std::ranges::all_of(node.inputs, is_last)) return;
    Node made = node;
    for (ValueId& input : made.inputs) input = last_[input];
    made.attributes["axis"] = axis_last(node.integer("axis", 0));
    replace(id, std::move(made));
  }

  void movement(NodeId id, const Node& node) {
    if (!is_stored_last(node.input(0)) || !has_result_rank(node.input(0))) return;
    const std::vector<int64_t> perm = ir::to_channels_last(rank_);
    Node made = node;
    made.inputs[0] = last_[node.input(0)];
    if (node.is("tenon::Slice")) {
      made.attributes["starts"] = ir::permuted(node.texts("starts"), perm);
      made.attributes["steps"] = ir::permuted(node.integers("steps"), perm);
    } else if (node.is("tenon::Pad")) {
      made.attributes["pads_begin"] = ir::permuted(node.texts("pads_begin"), perm);
    } else if (node.is("tenon::BlockExpand") || (node.is("Gather") && picks_a_list(node))) {
      made.attributes["axis"] = axis_last(node.integer("axis", 0));
    } else if (!node.is("Expand")) {
      return;
    }
    replace(id, std::move(made));
  }

  bool picks_a_list(const Node& node) const {
    const auto& indices = graph_.value(node.input(1)).shape;
    return indices && indices->size() == 1;
  }

  Graph& graph_;
  const SupportsFn& supports_;
  size_t rank_ = 0;                    // of the node that is visited
  std::map<ValueId, ValueId> last_;    // values that nodes write with their channels last
  std::map<ValueId, ValueId> turned_;  // others, turned around
};

}  // namespace

void store_channels_last(Graph& graph, const SupportsFn& supports) {
  Storing(graph, supports).run();
}

}  // namespace tenon
