#include "distributed/sharding/region.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "distributed/sharding/cut_dot.h"
#include "graph_partitioner/ir/fusions.h"

namespace tenon::distributed {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ScaledDot;
using ir::ValueId;

constexpr size_t kBias = 7;  // input of a ScaledDot

std::string describe(const Node& node) { return fmt::format("{} '{}'", node.op, node.name); }

}  // namespace

Readers::Readers(const Graph& graph)
    : nodes_(graph.value_count()), outputs_(graph.outputs().begin(), graph.outputs().end()) {
  for (const NodeId id : graph.order()) {
    for (const ValueId input : graph.node(id).inputs) {
      if (input == kNoValue) continue;
      auto& readers = nodes_[static_cast<size_t>(input)];
      if (readers.empty() || readers.back() != id) readers.push_back(id);
    }
  }
}

bool Region::refuse(std::string why) {
  reason_ = std::move(why);
  return false;
}

size_t Region::dots_by_columns() const {
  return static_cast<size_t>(std::ranges::count_if(
      found_.dots, [](const auto& entry) { return entry.second.by == DotCut::By::kColumns; }));
}

// What turns out to have a reader outside stays whole, and the rest is tried again.
bool Region::find(const std::vector<Wanted>& wanted, ValueId result, const Cut& cut) {
  for (;;) {
    const size_t known = whole_.size();
    found_ = {};
    packed_.clear();
    if (!try_wanted(wanted, result, cut)) return false;
    if (whole_.size() == known) return true;
  }
}

bool Region::try_wanted(const std::vector<Wanted>& wanted, ValueId result, const Cut& cut) {
  for (const Wanted& one : wanted) {
    if (!want(one.value, one.cut, sink_, one.operand)) return false;
  }
  if (result != kNoValue && !go_on(result, cut)) return false;
  return join_slices() && close();
}

bool Region::want(ValueId value, const Cut& cut, NodeId reader, size_t operand) {
  if (const auto known = found_.cuts.find(value); known != found_.cuts.end()) {
    return known->second == cut ||
           refuse(fmt::format("'{}' would be cut in two ways", graph_.value(value).name));
  }
  if (before_.cuts.contains(value)) {
    return refuse(fmt::format("'{}' is cut for another reader", graph_.value(value).name));
  }
  if (!can_be_cut(value, cut)) return read_part(value, cut, reader, operand);
  found_.cuts[value] = cut;
  const NodeId id = graph_.value(value).producer;
  const Node& node = graph_.node(id);
  if (node.is(ir::kScaledDot)) return want_dot(id, cut);
  if (const auto read = operands_for(graph_, node, cut)) {
    return std::ranges::all_of(*read, [&](const OperandCut& one) {
      return want(node.inputs[one.operand], one.cut, id, one.operand);
    });
  }
  Packed& packed = packed_[node.input(0)];
  packed.axis = cut.axis;
  packed.slices[id] = cut;
  return true;
}

bool Region::read_part(ValueId value, const Cut& cut, NodeId reader, size_t operand) {
  const ir::Value& whole = graph_.value(value);
  if (!whole.shape || !(*whole.shape)[cut.axis].is_constant()) {
    return refuse(fmt::format("'{}' has no known size to be cut", whole.name));
  }
  if (!whole.is_constant() && !has_one_piece_each(cut.shares)) {
    return refuse(fmt::format("'{}' packs several parts and comes whole", whole.name));
  }
  found_.parts_read[{reader, operand}] = cut;
  return true;
}

bool Region::want_dot(NodeId id, const Cut& cut) {
  const Node& node = graph_.node(id);
  found_.dots[id] = {DotCut::By::kColumns, cut.shares};
  const ValueId bias = node.input(kBias);
  if (bias == kNoValue) return true;
  const Shape& shape = *graph_.value(bias).shape;
  if (shape.empty() || shape.back().is(1)) return true;
  return want(bias, cut.along(shape.size() - 1), id, kBias);
}

bool Region::can_be_cut(ValueId value, const Cut& cut) const {
  if (graph_.value(value).producer == ir::kNoNode || readers_.is_output(value)) return false;
  if (whole_.contains(value) || !producer_goes_on(value, cut)) return false;
  return std::ranges::all_of(readers_.of(value),
                             [&](NodeId reader) { return reader_goes_on(reader, value, cut); });
}

bool Region::producer_goes_on(ValueId value, const Cut& cut) const {
  const NodeId id = graph_.value(value).producer;
  const Node& node = graph_.node(id);
  if (node.is(ir::kScaledDot)) {
    if (before_.dots.contains(id) || !before_.allow(id, DotCut::By::kColumns)) return false;
    if (!has_weight(graph_, node)) return false;
    const ScaledDot dot = ScaledDot::from(node);
    if (dot.bias != kNoValue && !graph_.value(dot.bias).shape) return false;
    return cut.axis + 1 == graph_.value(value).shape->size() && can_cut_columns(graph_, dot).ok;
  }
  return operands_for(graph_, node, cut) || sliced_part(graph_, node, cut.axis);
}

bool Region::reader_goes_on(NodeId reader, ValueId value, const Cut& cut) const {
  if (reader == sink_) return true;
  const Node& node = graph_.node(reader);
  if (node.is(ir::kScaledDot)) return node.input(0) == value;
  if (sliced_part(graph_, node, cut.axis)) return true;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == value && !result_for(graph_, node, i, cut)) return false;
  }
  return true;
}

// A packed value is cut once all of its slices are: each within itself.
bool Region::join_slices() {
  while (!packed_.empty()) {
    const auto next = packed_.extract(packed_.begin());
    if (!join(next.key(), next.mapped())) return false;
  }
  return true;
}

bool Region::join(ValueId value, const Packed& packed) {
  std::vector<std::pair<SlicedPart, NodeId>> slices;
  for (const auto& [id, cut] : packed.slices) {
    if (cut.axis == packed.axis)
      slices.emplace_back(*sliced_part(graph_, graph_.node(id), cut.axis), id);
  }
  std::ranges::sort(slices, {}, [](const auto& one) { return one.first.start; });
  bool apart = slices.size() == readers_.of(value).size() && !readers_.is_output(value);
  for (size_t i = 0; i + 1 < slices.size(); ++i) {
    apart &= slices[i].first.start + slices[i].first.count <= slices[i + 1].first.start;
  }
  if (!apart) {
    for (const auto& [id, cut] : packed.slices) whole_.insert(graph_.node(id).output(0));
    return true;
  }
  const size_t ranks = packed.slices.begin()->second.shares.size();
  Cut all{packed.axis, Shares(ranks)};
  for (const auto& [part, id] : slices) {
    SliceStarts& starts = found_.slices[id];
    for (const Pieces& pieces : all.shares) starts.push_back(length(pieces));
    all.shares = joined(all.shares, shifted(packed.slices.at(id).shares, part.start));
  }
  if (!can_be_cut(value, all)) {
    for (const auto& [part, id] : slices) whole_.insert(graph_.node(id).output(0));
    return true;
  }
  return want(value, all, slices[0].second, 0);
}

// Whoever reads a cut value must be of the region, or sum over the cut dim.
bool Region::close() {
  const std::map<ValueId, Cut> cuts = found_.cuts;
  for (const auto& [value, cut] : cuts) {
    for (const NodeId reader : readers_.of(value)) {
      if (closes(reader, value, cut)) continue;
      if (!whole_.insert(value).second) {
        return refuse(fmt::format("{} needs '{}' whole", describe(graph_.node(reader)),
                                  graph_.value(value).name));
      }
      break;
    }
  }
  return true;
}

bool Region::closes(NodeId reader, ValueId value, const Cut& cut) {
  if (reader == sink_) return true;
  const Node& node = graph_.node(reader);
  if (node.is(ir::kScaledDot)) return take_rows(reader, value, cut);
  return std::ranges::any_of(node.outputs,
                             [&](ValueId output) { return found_.cuts.contains(output); });
}

bool Region::take_rows(NodeId reader, ValueId value, const Cut& cut) {
  const Node& node = graph_.node(reader);
  if (const auto known = found_.dots.find(reader); known != found_.dots.end()) {
    return known->second.by == DotCut::By::kRows && known->second.shares == cut.shares;
  }
  if (before_.dots.contains(reader) || !before_.allow(reader, DotCut::By::kRows)) return false;
  if (!has_weight(graph_, node)) return false;
  const ScaledDot dot = ScaledDot::from(node);
  const bool reads_once = std::ranges::count(node.inputs, value) == 1 && dot.a == value;
  if (!reads_once || k_axis(graph_, dot) != cut.axis) return false;
  if (!can_cut_rows(graph_, dot, cut.shares)) return false;
  found_.dots[reader] = {DotCut::By::kRows, cut.shares};
  return true;
}

bool Region::go_on(ValueId value, const Cut& cut) {
  found_.cuts[value] = cut;
  if (readers_.is_output(value)) {
    return refuse(fmt::format("'{}' leaves the graph", graph_.value(value).name));
  }
  return std::ranges::all_of(readers_.of(value),
                             [&](NodeId reader) { return go_on_in(reader, value, cut); });
}

bool Region::go_on_in(NodeId reader, ValueId value, const Cut& cut) {
  const Node& node = graph_.node(reader);
  if (node.is(ir::kScaledDot)) {
    return take_rows(reader, value, cut) ||
           refuse(fmt::format("{} cannot be cut along what it sums over", describe(node)));
  }
  const auto operand =
      static_cast<size_t>(std::ranges::find(node.inputs, value) - node.inputs.begin());
  const auto result = result_for(graph_, node, operand, cut);
  if (!result) {
    return refuse(fmt::format("{} needs '{}' whole", describe(node), graph_.value(value).name));
  }
  if (found_.cuts.contains(node.output(0))) return true;
  found_.cuts[node.output(0)] = *result;
  const auto read = operands_for(graph_, node, *result);
  for (const OperandCut& one : *read) {
    if (!want(node.inputs[one.operand], one.cut, reader, one.operand)) return false;
  }
  return go_on(node.output(0), *result);
}

}  // namespace tenon::distributed
