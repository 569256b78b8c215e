#include "distributed/sharding/plan.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "distributed/sharding/cut_dot.h"
#include "distributed/sharding/plan_attention.h"
#include "distributed/sharding/region.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/paged_attention.h"

namespace tenon::distributed {

void Decisions::add(const Decisions& more) {
  cuts.insert(more.cuts.begin(), more.cuts.end());
  parts_read.insert(more.parts_read.begin(), more.parts_read.end());
  dots.insert(more.dots.begin(), more.dots.end());
  slices.insert(more.slices.begin(), more.slices.end());
}

namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ScaledDot;
using ir::ValueId;

class Planner {
 public:
  Planner(const Graph& graph, const PlanOptions& options)
      : graph_(graph), options_(options), readers_(graph) {}

  Plan run() {
    for (const NodeId id : graph_.order()) {
      if (graph_.node(id).is(ir::kAttention)) cut_attention(id);
      if (graph_.node(id).is(ir::kPagedAttention)) {
        keep_whole(id, "its cache is in pages of all heads");
      }
    }
    for (const NodeId id : graph_.order()) {
      if (is_open_dot(id)) cut_rows(id);
    }
    for (const NodeId id : graph_.order()) {
      if (graph_.node(id).is(ir::kScaledDot)) cut_columns(id);
      if (graph_.node(id).is("Gather")) cut_table(id);
    }
    return std::move(plan_);
  }

 private:
  void cut_attention(NodeId id) {
    AttentionPlan found = plan_attention(graph_, readers_, plan_, id, options_.ranks);
    if (!found.answer) return keep_whole(id, found.answer.reason);
    plan_.decisions.add(found.decisions);
    plan_.attentions[id] = std::move(found.heads);
    if (found.gathered) plan_.gathers[graph_.node(id).output(0)] = *found.gathered;
    plan_.symbols.insert(found.symbols.begin(), found.symbols.end());
  }

  bool is_open_dot(NodeId id) const {
    const Node& node = graph_.node(id);
    return node.is(ir::kScaledDot) && !plan_.decisions.dots.contains(id) &&
           has_weight(graph_, node).ok;
  }

  // Column-parallel products before it, and itself by rows.
  void cut_rows(NodeId id) {
    const ScaledDot dot = ScaledDot::from(graph_.node(id));
    const int64_t k = weight_size(graph_, dot).k;
    const auto shares = deal_columns(k, dot.scale_b.block, options_.ranks);
    if (!shares || !can_cut_rows(graph_, dot, *shares)) return;
    Region region(graph_, readers_, plan_.decisions, id);
    if (!region.find({{dot.a, 0, {k_axis(graph_, dot), *shares}}})) return;
    if (region.dots_by_columns() == 0) return;
    plan_.decisions.add(region.decisions());
    plan_.decisions.dots[id] = {DotCut::By::kRows, *shares};
  }

  // Nothing goes on with the cut: each rank computes columns, and all get the result.
  void cut_columns(NodeId id) {
    const Node& node = graph_.node(id);
    if (plan_.decisions.dots.contains(id) || kept_.contains(id)) return;
    const ScaledDot dot = ScaledDot::from(node);
    const int64_t bytes = weight_bytes(dot);
    if (bytes == 0) return;
    const auto whole = [&](std::string reason) { hold_whole(id, std::move(reason), bytes); };
    if (bytes < options_.least_bytes) return whole("its weight is too small for an exchange");
    if (Support weight = has_weight(graph_, node); !weight) return whole(weight.reason);
    if (Support columns = can_cut_columns(graph_, dot); !columns) return whole(columns.reason);
    const auto shares = deal_columns(weight_size(graph_, dot).n, 1, options_.ranks);
    if (!shares) return whole(fmt::format("it has fewer columns than {} ranks", options_.ranks));
    const Shape& shape = *graph_.value(node.output(0)).shape;
    Region region(graph_, readers_, plan_.decisions, id);
    std::vector<Region::Wanted> wanted;
    if (dot.bias != kNoValue) {
      const auto& bias = graph_.value(dot.bias).shape;
      if (!bias) return whole("the shape of its bias is not known");
      if (!bias->empty() && !bias->back().is(1)) {
        wanted.push_back({dot.bias, kBias, {bias->size() - 1, *shares}});
      }
    }
    if (!region.find(wanted)) return whole(region.reason());
    plan_.decisions.add(region.decisions());
    plan_.decisions.dots[id] = {DotCut::By::kColumns, *shares};
    gather_late(node.output(0), {shape.size() - 1, *shares});
  }

  // Behind slices of other dims: rows that nobody asks for need not travel.
  void gather_late(ValueId value, const Cut& cut) {
    const auto& readers = readers_.of(value);
    if (readers.size() == 1 && !readers_.is_output(value)) {
      const Node& reader = graph_.node(readers[0]);
      if (reader.is("tenon::Slice") && result_for(graph_, reader, 0, cut)) {
        plan_.decisions.cuts[value] = cut;
        return gather_late(reader.output(0), cut);
      }
    }
    plan_.gathers[value] = cut;
  }

  // Rows of a table by index: a rank gives those that it has, and zeros for the others.
  void cut_table(NodeId id) {
    const Node& node = graph_.node(id);
    const ir::Value& table = graph_.value(node.input(0));
    if (!table.is_constant() || node.integer("axis", 0) != 0) return;
    const auto bytes = static_cast<int64_t>(table.constant->bytes);
    if (bytes < options_.least_bytes || table.constant->dims.empty()) return;
    const auto whole = [&](std::string reason) { hold_whole(id, std::move(reason), bytes); };
    if (!is_floating(table.dtype) || bit_width(table.dtype) < 16) {
      return whole("its table holds codes, which ranks cannot add");
    }
    if (!graph_.value(node.output(0)).shape || !graph_.value(node.input(1)).shape) {
      return whole("its shapes are not known");
    }
    const auto shares = deal_columns(table.constant->dims[0], 1, options_.ranks);
    if (!shares)
      return whole(fmt::format("its table has fewer rows than {} ranks", options_.ranks));
    plan_.tables[id] = *shares;
  }

  int64_t weight_bytes(const ScaledDot& dot) const {
    int64_t bytes = 0;
    for (const ValueId id : {dot.b, dot.scale_b.scale, dot.scale_b.zero_point}) {
      if (id == kNoValue || !graph_.value(id).is_constant()) continue;
      bytes += static_cast<int64_t>(graph_.value(id).constant->bytes);
    }
    return bytes;
  }

  // Every rank computes it, and so what it reads: products in front of it stay whole too, which
  // costs their bytes but no exchange.
  void keep_whole(NodeId id, std::string reason) {
    std::vector<ValueId> open(graph_.node(id).inputs.begin(), graph_.node(id).inputs.begin() + 3);
    std::set<ValueId> seen;
    int64_t bytes = 0;
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      if (value == kNoValue || !seen.insert(value).second) continue;
      const NodeId producer = graph_.value(value).producer;
      if (producer == ir::kNoNode || graph_.node(producer).is(ir::kAttention)) continue;
      const Node& node = graph_.node(producer);
      if (!node.is(ir::kScaledDot)) {
        open.insert(open.end(), node.inputs.begin(), node.inputs.end());
      } else if (kept_.insert(producer).second) {
        bytes += weight_bytes(ScaledDot::from(node));
      }
    }
    hold_whole(id, std::move(reason), bytes);
    plan_.told.insert(kept_.begin(), kept_.end());
  }

  void hold_whole(NodeId id, std::string reason, int64_t bytes) {
    plan_.wholes.push_back({graph_.node(id).name, std::move(reason), bytes});
    plan_.told.insert(id);
  }

  static constexpr size_t kBias = 7;  // input of a ScaledDot

  const Graph& graph_;
  const PlanOptions& options_;
  const Readers readers_;
  std::set<NodeId> kept_;
  Plan plan_;
};

}  // namespace

Plan make_plan(const Graph& graph, const PlanOptions& options) {
  return Planner(graph, options).run();
}

}  // namespace tenon::distributed
