#include "distributed/sharding/tokens.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/support.h"
#include "distributed/sharding/cut.h"
#include "distributed/sharding/flow.h"
#include "distributed/sharding/writer.h"
#include "graph_partitioner/ir/collectives.h"

namespace tenon::distributed {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

bool is_sum(const Node& node) {
  return node.is(ir::kAllReduce) && ir::Collective::from(node).reduction == "sum";
}

class TokenPass {
 public:
  TokenPass(Graph& graph, const Plan& plan, const TokenOptions& options)
      : graph_(graph), plan_(plan), options_(options) {}

  std::string run() {
    find_equal_values();
    const std::string refusal = find_sums();
    if (sums_.empty()) return refusal;
    spread();
    drop_useless_sums();
    if (sums_.empty()) return "every rank has all of them: nothing but products reads the sums";
    find_gathers();
    if (gathered_bytes_ > summed_bytes_) {
      return fmt::format("every rank has all of them: {} bytes would be gathered for {} of sums",
                         gathered_bytes_, summed_bytes_);
    }
    const std::string done = fmt::format(
        "each rank has its own between sums and products: {} scattered, {} gathered, {} bytes of "
        "results between them computed once instead of by every rank",
        sums_.size(), gathers_.size(), shared_bytes());
    apply();
    return done;
  }

 private:
  // Values that are the same on every rank.
  void find_equal_values() {
    for (size_t value = 0; value < graph_.value_count(); ++value) {
      const auto id = static_cast<ValueId>(value);
      if (graph_.value(id).producer != ir::kNoNode) continue;
      const bool is_part = graph_.value(id).constant && value >= options_.old_values;
      if (!is_part && !plan_.decisions.cuts.contains(id)) equal_.insert(id);
    }
    for (const NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      const bool is_own_part =
          node.is("tenon::Slice") && static_cast<size_t>(node.output(0)) >= options_.old_values;
      const bool from_equal = std::ranges::all_of(
          node.inputs, [&](ValueId input) { return input == kNoValue || equal_.contains(input); });
      const bool is_put_together = node.is(ir::kAllReduce) || node.is(ir::kAllGather);
      if (is_put_together || (from_equal && !is_own_part)) {
        equal_.insert(node.outputs.begin(), node.outputs.end());
      }
    }
  }

  std::optional<int64_t> bytes_of(ValueId id) const {
    const ir::Value& value = graph_.value(id);
    const Dim elements = element_count(*value.shape);
    if (!elements.is_constant()) return std::nullopt;
    return static_cast<int64_t>(storage_bytes(value.dtype, elements.value()));
  }

  // Behind dims of 1 only, so that ranks' tokens follow each other in memory.
  static size_t token_axis(const Shape& shape) {
    size_t axis = 0;
    while (axis + 1 < shape.size() && shape[axis].is(1)) ++axis;
    return axis;
  }

  std::string find_sums() {
    std::string refusal;
    for (const NodeId id : graph_.order()) {
      if (!is_sum(graph_.node(id))) continue;
      const Support can = add_sum(id);
      if (!can) refusal = "every rank has all of them: " + can.reason;
    }
    return refusal;
  }

  Support add_sum(NodeId id) {
    const ValueId sum = graph_.node(id).output(0);
    const Shape& shape = *graph_.value(sum).shape;
    const size_t axis = token_axis(shape);
    const auto bytes = bytes_of(sum);
    if (!bytes) return Support::no("the graph leaves their number open");
    const int64_t tokens = axis + 1 < shape.size() ? shape[axis].value() : 1;
    const auto shares = deal(tokens, 1, options_.ranks);
    if (!shares) return Support::no(fmt::format("{} for {} ranks", tokens, options_.ranks));
    if (*bytes < options_.least_bytes) {
      return Support::no(fmt::format("sums of {} bytes are too small for two exchanges", *bytes));
    }
    sums_.insert(id);
    cuts_[sum] = {axis, *shares};
    return Support::yes();
  }

  // On to everything that works token by token.
  void spread() {
    for (const NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      if (node.outputs.size() != 1 || !equal_.contains(node.output(0))) continue;
      if (const auto cut = cut_of_result(node); cut && takes(id, *cut)) {
        cuts_[node.output(0)] = *cut;
        nodes_.insert(id);
      }
    }
  }

  std::optional<Cut> cut_of_result(const Node& node) const {
    if (ir::is_collective(node)) return std::nullopt;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto known = cuts_.find(node.inputs[i]);
      if (known != cuts_.end()) return result_for(graph_, node, i, known->second);
    }
    return std::nullopt;
  }

  bool takes(NodeId id, const Cut& result) {
    const Node& node = graph_.node(id);
    const auto read = operands_for(graph_, node, result);
    if (!read) return false;
    std::map<std::pair<NodeId, size_t>, Cut> parts;
    std::set<size_t> cut_operands;
    for (const OperandCut& one : *read) {
      const ValueId operand = node.inputs[one.operand];
      const auto known = cuts_.find(operand);
      cut_operands.insert(one.operand);
      if (known == cuts_.end()) {
        if (!equal_.contains(operand)) return false;
        parts[{id, one.operand}] = one.cut;
      } else if (!(known->second == one.cut)) {
        return false;
      }
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (cuts_.contains(node.inputs[i]) && !cut_operands.contains(i)) return false;
    }
    parts_.merge(parts);
    return true;
  }

  bool is_read_cut(ValueId value) const {
    return std::ranges::any_of(graph_.consumers(value),
                               [&](NodeId reader) { return nodes_.contains(reader); });
  }

  // A sum that is gathered at once stays one exchange.
  void drop_useless_sums() {
    for (auto at = sums_.begin(); at != sums_.end();) {
      const ValueId sum = graph_.node(*at).output(0);
      if (is_read_cut(sum)) {
        summed_bytes_ += *bytes_of(sum);
        ++at;
        continue;
      }
      cuts_.erase(sum);
      at = sums_.erase(at);
    }
  }

  void find_gathers() {
    for (const NodeId id : graph_.order()) {
      for (const ValueId value : graph_.node(id).outputs) {
        if (!cuts_.contains(value)) continue;
        const auto readers = graph_.consumers(value);
        const bool is_needed =
            graph_.is_output(value) ||
            std::ranges::any_of(readers, [&](NodeId reader) { return !nodes_.contains(reader); });
        if (!is_needed) continue;
        gathers_.push_back(value);
        gathered_bytes_ += bytes_of(value).value_or(summed_bytes_ + 1);
      }
    }
  }

  int64_t shared_bytes() const {
    int64_t all = 0;
    for (const NodeId id : nodes_) all += bytes_of(graph_.node(id).output(0)).value_or(0);
    return all;
  }

  void apply() {
    for (const auto& [place, cut] : parts_) take_part(place.first, place.second, cut);
    std::map<ValueId, Shape> whole;
    for (const auto& [value, cut] : cuts_) {
      Shape& shape = *graph_.value(value).shape;
      whole[value] = shape;
      shape[cut.axis] = length(own(cut));
    }
    for (const NodeId id : sums_) scatter(id, whole.at(graph_.node(id).output(0)));
    for (const ValueId value : gathers_) gather(value, whole.at(value));
  }

  const Pieces& own(const Cut& cut) const { return cut.shares[static_cast<size_t>(options_.rank)]; }

  ir::Collective collective(std::string_view op, const Cut& cut) const {
    ir::Collective made{.op = std::string(op), .ranks = options_.ranks};
    for (const Pieces& pieces : cut.shares) made.parts.push_back(length(pieces));
    if (std::ranges::count(made.parts, made.parts[0]) == std::ssize(made.parts)) {
      made.parts.clear();
    } else {
      made.part = options_.rank;
    }
    return made;
  }

  void take_part(NodeId reader, size_t operand, const Cut& cut) {
    const ValueId whole = graph_.node(reader).inputs[operand];
    const ir::Value value = graph_.value(whole);
    Shape shape = *value.shape;
    std::vector<std::string> starts(shape.size(), "0");
    starts[cut.axis] = Dim(own(cut)[0].begin).text();
    shape[cut.axis] = length(own(cut));
    const std::vector<int64_t> steps(shape.size(), 1);
    const ValueId part = Writer::before(graph_, reader)
                             .write("tenon::Slice", {whole}, value.dtype, shape,
                                    {{"starts", starts}, {"steps", steps}});
    graph_.node(reader).inputs[operand] = part;
  }

  // Collectives cut the first dim: those of 1 in front of tokens are left out for them.
  static Shape without_front(const Shape& shape, size_t axis) {
    return {shape.begin() + static_cast<ptrdiff_t>(axis), shape.end()};
  }

  void scatter(NodeId id, const Shape& whole) {
    const ValueId sum = graph_.node(id).output(0), from = graph_.node(id).input(0);
    const Cut& cut = cuts_.at(sum);
    const ir::Value value = graph_.value(sum);
    const ir::Collective made = collective(ir::kReduceScatter, cut);
    if (cut.axis == 0) return made.write_to(graph_.node(id));
    Writer before = Writer::before(graph_, id);
    const ValueId rows =
        before.write("Reshape", {from}, value.dtype, without_front(whole, cut.axis));
    const ValueId part = before.value(value.dtype, without_front(*value.shape, cut.axis));
    before.write_to(part, made, rows);
    Node& view = graph_.node(id);
    view.op = "Reshape";
    view.attributes.clear();
    view.inputs = {part};
  }

  void gather(ValueId value, const Shape& whole) {
    const Cut& cut = cuts_.at(value);
    const DType dtype = graph_.value(value).dtype;
    const Shape local = *graph_.value(value).shape;
    const std::vector<NodeId> readers = graph_.consumers(value);
    Writer behind = Writer::behind(graph_, graph_.value(value).producer);
    const ir::Collective made = collective(ir::kAllGather, cut);
    ValueId all = behind.value(dtype, without_front(whole, cut.axis));
    ValueId rows = value;
    if (cut.axis > 0)
      rows = behind.write("Reshape", {value}, dtype, without_front(local, cut.axis));
    behind.write_to(all, made, rows);
    if (cut.axis > 0) all = behind.write("Reshape", {all}, dtype, whole);
    for (const NodeId reader : readers) {
      if (nodes_.contains(reader)) continue;
      std::ranges::replace(graph_.node(reader).inputs, value, all);
    }
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      if (graph_.outputs()[i] == value) graph_.set_output(i, all);
    }
  }

  Graph& graph_;
  const Plan& plan_;
  const TokenOptions& options_;
  std::set<ValueId> equal_;
  std::set<NodeId> sums_, nodes_;  // that become scattered; that work on a rank's tokens
  std::map<ValueId, Cut> cuts_;
  std::map<std::pair<NodeId, size_t>, Cut> parts_;  // operands that come whole
  std::vector<ValueId> gathers_;
  int64_t summed_bytes_ = 0, gathered_bytes_ = 0;
};

}  // namespace

std::string deal_tokens(Graph& graph, const Plan& plan, const TokenOptions& options) {
  return TokenPass(graph, plan, options).run();
}

}  // namespace tenon::distributed
