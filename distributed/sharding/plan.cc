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

bool Decisions::allow(ir::NodeId dot, DotCut::By by) const {
  const auto wish = wishes.find(dot);
  if (wish == wishes.end()) return true;
  return wish->second == (by == DotCut::By::kColumns ? Wish::kColumns : Wish::kRows);
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
  Planner(const Graph& graph, const PlanOptions& options, const Annotations& annotations)
      : graph_(graph),
        options_(options),
        readers_(graph),
        wishes_(find_wishes(graph, annotations, options.ranks)) {
    plan_.decisions.wishes = wishes_.nodes;
  }

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
    answer_wishes();
    return std::move(plan_);
  }

 private:
  bool asks(NodeId id, Wish wish) const {
    const auto found = plan_.decisions.wishes.find(id);
    return found != plan_.decisions.wishes.end() && found->second == wish;
  }

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
    if (!plan_.decisions.allow(id, DotCut::By::kRows)) return;
    const bool asked = asks(id, Wish::kRows);
    const ScaledDot dot = ScaledDot::from(graph_.node(id));
    const int64_t k = weight_size(graph_, dot).k;
    const auto shares = deal_columns(k, dot.scale_b.block, options_.ranks);
    if (!shares || !can_cut_rows(graph_, dot, *shares)) return;
    Region region(graph_, readers_, plan_.decisions, id);
    if (!region.find({{dot.a, 0, {k_axis(graph_, dot), *shares}}})) {
      if (asked) give_up(id, region.reason());
      return;
    }
    if (region.dots_by_columns() == 0 && !asked) return;
    plan_.decisions.add(region.decisions());
    plan_.decisions.dots[id] = {DotCut::By::kRows, *shares};
  }

  // Nothing goes on with the cut: each rank computes columns, and all get the result.
  void cut_columns(NodeId id) {
    const Node& node = graph_.node(id);
    const bool asked = asks(id, Wish::kColumns);
    if (plan_.decisions.dots.contains(id) || (kept_.contains(id) && !asked)) return;
    const ScaledDot dot = ScaledDot::from(node);
    const int64_t bytes = weight_bytes(dot);
    if (bytes == 0) return;
    const auto whole = [&](std::string reason) { hold_whole(id, std::move(reason), bytes); };
    if (asks(id, Wish::kWhole)) return whole("the file asks for it");
    if (bytes < options_.least_bytes && !asked) {
      return whole("its weight is too small for an exchange");
    }
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
    const bool asked = asks(id, Wish::kRows);
    if ((bytes < options_.least_bytes && !asked) || table.constant->dims.empty()) return;
    const auto whole = [&](std::string reason) { hold_whole(id, std::move(reason), bytes); };
    if (asks(id, Wish::kWhole)) return whole("the file asks for it");
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

  // From here on it is cut as if the file said nothing.
  void give_up(NodeId id, std::string reason) {
    plan_.decisions.wishes.erase(id);
    given_up_[id] = std::move(reason);
  }

  void answer_wishes() {
    for (const UnfollowedAnnotation& one : wishes_.unfollowed) {
      plan_.annotations.push_back({one.node, "", one.reason});
    }
    for (const auto& [id, wish] : wishes_.nodes) {
      const Wish done = what_is_done(id);
      AnnotationAnswer answer{wishes_.asked_by.at(id), std::string(name(wish)), ""};
      if (done != wish) {
        const auto why = given_up_.find(id);
        answer.reason = why != given_up_.end() ? why->second : why_whole(id);
      }
      plan_.annotations.push_back(std::move(answer));
    }
  }

  Wish what_is_done(NodeId id) const {
    if (plan_.tables.contains(id)) return Wish::kRows;
    const auto dot = plan_.decisions.dots.find(id);
    if (dot == plan_.decisions.dots.end()) return Wish::kWhole;
    return dot->second.by == DotCut::By::kColumns ? Wish::kColumns : Wish::kRows;
  }

  std::string why_whole(NodeId id) const {
    const auto told = std::ranges::find(plan_.wholes, graph_.node(id).name, &Whole::node);
    return told == plan_.wholes.end() ? "what stands around it does not allow it" : told->reason;
  }

  static constexpr size_t kBias = 7;  // input of a ScaledDot

  const Graph& graph_;
  const PlanOptions& options_;
  const Readers readers_;
  const Wishes wishes_;
  std::set<NodeId> kept_;
  std::map<NodeId, std::string> given_up_;
  Plan plan_;
};

}  // namespace

Plan make_plan(const Graph& graph, const PlanOptions& options, const Annotations& annotations) {
  return Planner(graph, options, annotations).run();
}

}  // namespace tenon::distributed
