#include "distributed/sharding/rewrite.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/convert.h"
#include "distributed/sharding/cut_dot.h"
#include "distributed/sharding/cut_tensor.h"
#include "distributed/sharding/writer.h"
#include "graph_partitioner/ir/collectives.h"
#include "graph_partitioner/ir/fusions.h"

namespace tenon::distributed {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ScaledDot;
using ir::TensorPtr;
using ir::ValueId;

std::vector<int64_t> to_front(size_t axis, size_t rank) {
  std::vector<int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin(), perm.begin() + static_cast<ptrdiff_t>(axis),
              perm.begin() + static_cast<ptrdiff_t>(axis) + 1);
  return perm;
}

std::vector<int64_t> from_front(size_t axis, size_t rank) {
  std::vector<int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin(), perm.begin() + 1, perm.begin() + static_cast<ptrdiff_t>(axis) + 1);
  return perm;
}

Shape permuted(const Shape& shape, const std::vector<int64_t>& perm) {
  Shape moved;
  for (const int64_t axis : perm) moved.push_back(shape[static_cast<size_t>(axis)]);
  return moved;
}

class Rewriter {
 public:
  Rewriter(Graph& graph, const Plan& plan, int64_t rank, ShardingReport& report)
      : graph_(graph), plan_(plan), rank_(static_cast<size_t>(rank)), report_(report) {}

  void run() {
    const std::vector<NodeId> order = graph_.order();
    for (const NodeId id : order) read_parts(id);
    for (const auto& [value, cut] : plan_.decisions.cuts) shrink(value, cut);
    for (const NodeId id : order) {
      cut_node(id);
      for (const ValueId output : std::vector<ValueId>(graph_.node(id).outputs)) {
        if (const auto gather = plan_.gathers.find(output); gather != plan_.gathers.end()) {
          put_together(id, output, gather->second);
        }
      }
    }
    bind_symbols();
    graph_.remove_dead_nodes();
  }

 private:
  const Pieces& own(const Shares& shares) const { return shares[rank_]; }

  void cut_node(NodeId id) {
    const auto& [cuts, parts_read, dots, slices, wishes] = plan_.decisions;
    if (const auto dot = dots.find(id); dot != dots.end()) {
      dot->second.by == DotCut::By::kColumns ? cut_columns(id, dot->second.shares)
                                             : cut_rows(id, dot->second.shares);
    }
    if (const auto heads = plan_.attentions.find(id); heads != plan_.attentions.end()) {
      Node& node = graph_.node(id);
      node.attributes["q_heads"] = length(own(heads->second.q));
      node.attributes["kv_heads"] = length(own(heads->second.kv));
    }
    if (const auto starts = slices.find(id); starts != slices.end()) {
      Node& node = graph_.node(id);
      std::vector<std::string> texts = node.texts("starts");
      texts.at(cuts.at(node.output(0)).axis) = Dim(starts->second[rank_]).text();
      node.attributes["starts"] = std::move(texts);
    }
    if (const auto table = plan_.tables.find(id); table != plan_.tables.end()) {
      cut_table(id, table->second);
    }
  }

  // Inputs keep the symbol that a rank binds.
  void shrink(ValueId id, const Cut& cut) {
    if (graph_.is_input(id)) return;
    graph_.value(id).shape->at(cut.axis) = length(own(cut.shares));
  }

  void read_parts(NodeId id) {
    for (size_t i = 0; i < graph_.node(id).inputs.size(); ++i) {
      const auto part = plan_.decisions.parts_read.find({id, i});
      if (part == plan_.decisions.parts_read.end()) continue;
      const ValueId own = part_of(id, graph_.node(id).inputs[i], part->second);
      graph_.node(id).inputs[i] = own;
    }
  }

  ValueId part_of(NodeId reader, ValueId whole, const Cut& cut) {
    const auto key = std::pair{whole, cut.axis};
    for (const auto& [known, shares, part] : parts_) {
      if (known == key && shares == cut.shares) return part;
    }
    const ir::Value value = graph_.value(whole);
    ValueId part = kNoValue;
    if (value.is_constant()) {
      part = graph_.add_constant(value.name, take(*value.constant, cut.axis, own(cut.shares)));
      add_weight(whole, part, cut.shares,
                 fmt::format("{} of {} along dim {}", text(own(cut.shares)),
                             (*value.shape)[cut.axis].text(), cut.axis));
    } else {
      part = slice(reader, value, whole, cut);
    }
    parts_.emplace_back(key, cut.shares, part);
    return part;
  }

  ValueId slice(NodeId reader, const ir::Value& value, ValueId whole, const Cut& cut) {
    const Range range = own(cut.shares).at(0);
    Shape shape = *value.shape;
    std::vector<std::string> starts(shape.size(), "0");
    starts[cut.axis] = Dim(range.begin).text();
    shape[cut.axis] = range.size();
    const std::vector<int64_t> steps(shape.size(), 1);
    return Writer::before(graph_, reader)
        .write("tenon::Slice", {whole}, value.dtype, shape, {{"starts", starts}, {"steps", steps}});
  }

  void add_weight(ValueId whole, ValueId part, const Shares& shares, std::string what) {
    WeightShare share;
    share.name = graph_.value(whole).name;
    share.part = std::move(what);
    share.bytes = static_cast<int64_t>(graph_.value(part).constant->bytes);
    share.whole_bytes = static_cast<int64_t>(graph_.value(whole).constant->bytes);
    for (const Pieces& pieces : shares) {
      share.bytes_by_rank.push_back(share.bytes * length(pieces) / length(own(shares)));
    }
    report_.weights.push_back(std::move(share));
  }

  // Puts a part in the place of a constant; null: it stays whole.
  void replace(ValueId& id, const TensorPtr& part, const Shares& shares, const std::string& what) {
    if (!part) return;
    const ValueId whole = id;
    id = graph_.add_constant(graph_.value(whole).name, part);
    add_weight(whole, id, shares, what);
  }

  void replace_weight(ScaledDot& dot, const WeightPart& part, const Shares& shares,
                      const std::string& what) {
    replace(dot.b, part.b, shares, what);
    replace(dot.scale_b.scale, part.scale, shares, what);
    replace(dot.scale_b.zero_point, part.zero_point, shares, what);
  }

  void cut_columns(NodeId id, const Shares& shares) {
    ScaledDot dot = ScaledDot::from(graph_.node(id));
    const Pieces& n = own(shares);
    const int64_t all = weight_size(graph_, dot).n;
    replace_weight(dot, columns_of(graph_, dot, n), shares,
                   fmt::format("columns {} of {}", text(n), all));
    if (!dot.b_dims.empty()) dot.b_dims[dot.b_k_last ? 0 : 1] = length(n);
    dot.write_to(graph_.node(id));
  }

  void cut_rows(NodeId id, const Shares& shares) {
    ScaledDot dot = ScaledDot::from(graph_.node(id));
    const Pieces& k = own(shares);
    const int64_t block = block_for(graph_, dot, shares), all = weight_size(graph_, dot).k;
    replace_weight(dot, rows_of(graph_, dot, k, block), shares,
                   fmt::format("rows {} of {}", text(k), all));
    if (!dot.b_dims.empty()) dot.b_dims[dot.b_k_last ? 1 : 0] = length(k);
    dot.scale_b.block = block;
    const ValueId bias = std::exchange(dot.bias, kNoValue);
    dot.write_to(graph_.node(id));
    sum_up(id, bias);
  }

  void sum_up(NodeId id, ValueId bias) {
    const ValueId result = graph_.node(id).output(0);
    const ir::Value value = graph_.value(result);
    Writer behind = Writer::behind(graph_, id);
    const ValueId partial = behind.value(value.dtype, *value.shape);
    give_instead(id, partial);
    const ValueId sum = bias == kNoValue ? result : behind.value(value.dtype, *value.shape);
    exchange(behind, {.op = std::string(ir::kAllReduce)}, partial, sum);
    if (bias == kNoValue) return;
    const ir::Value added = graph_.value(bias);
    const ValueId same_type =
        added.dtype == value.dtype ? bias : behind.write("Cast", {bias}, value.dtype, *added.shape);
    behind.write_to(result, "Add", {sum, same_type});
  }

  // The node gives another value in place of its first output.
  void give_instead(NodeId id, ValueId value) {
    graph_.node(id).outputs[0] = value;
    graph_.value(value).producer = id;
  }

  void exchange(Writer& writer, ir::Collective collective, ValueId from, ValueId to) {
    collective.ranks = report_.ranks;
    writer.write_to(to, collective, from);
  }

  void put_together(NodeId id, ValueId result, const Cut& cut) {
    const ir::Value value = graph_.value(result);
    const size_t rank = value.shape->size();
    Shape local = *value.shape;
    local[cut.axis] = length(own(cut.shares));
    Writer behind = Writer::behind(graph_, id);
    const ValueId part = behind.value(value.dtype, local);
    give_instead(id, part);
    ir::Collective gather{.op = std::string(ir::kAllGather)};
    for (const Pieces& pieces : cut.shares) gather.parts.push_back(length(pieces));
    gather.part = static_cast<int64_t>(rank_);
    if (std::ranges::adjacent_find(gather.parts, std::ranges::not_equal_to{}) ==
        gather.parts.end()) {
      gather.parts.clear();
      gather.part = 0;
    }
    if (cut.axis == 0) return exchange(behind, gather, part, result);
    const auto forth = to_front(cut.axis, rank), back = from_front(cut.axis, rank);
    const ValueId first =
        behind.write("Transpose", {part}, value.dtype, permuted(local, forth), {{"perm", forth}});
    const ValueId all = behind.value(value.dtype, permuted(*value.shape, forth));
    exchange(behind, gather, first, all);
    behind.write_to(result, "Transpose", {all}, {{"perm", back}});
  }

  ValueId scalar(DType dtype, int64_t number) {
    return graph_.add_constant("scalar", ir::Tensor::of(dtype, {}, {static_cast<double>(number)}));
  }

  // Rows that this rank has not are zeros, and the sum over the ranks is the row.
  void cut_table(NodeId id, const Shares& shares) {
    const ValueId table = graph_.node(id).input(0), indices = graph_.node(id).input(1);
    const ir::TensorPtr whole = graph_.value(table).constant;
    const ir::Value rows = graph_.value(graph_.node(id).output(0));
    const Range range = own(shares).at(0);
    const ValueId part =
        graph_.add_constant(graph_.value(table).name, take(*whole, 0, own(shares)));
    add_weight(table, part, shares,
               fmt::format("rows {} of {}", text(own(shares)), whole->dims[0]));
    const auto [place, has] = place_in(id, indices, range, whole->dims[0]);
    graph_.node(id).inputs = {part, place};
    mask_rows(id, has, rows, whole->dims.size() - 1);
  }

  struct Place {
    ValueId index = kNoValue, has = kNoValue;
  };
  // Negative indices count from the end. One that no rank has stays one, so that the Run fails as
  // it does with the whole table.
  Place place_in(NodeId id, ValueId indices, const Range& range, int64_t all) {
    Writer before = Writer::before(graph_, id);
    const ir::Value given = graph_.value(indices);
    const auto number = [&](int64_t value) { return scalar(given.dtype, value); };
    const auto index = [&](const char* op, std::vector<ValueId> inputs) {
      return before.write(op, std::move(inputs), given.dtype, *given.shape);
    };
    const auto flag = [&](const char* op, std::vector<ValueId> inputs) {
      return before.write(op, std::move(inputs), DType::kBool, *given.shape);
    };
    const ValueId zero = number(0), size = number(all);
    const ValueId turned = index("Add", {indices, size});
    const ValueId counted = index("Where", {flag("Less", {indices, zero}), turned, indices});
    const ValueId outside =
        flag("Or", {flag("Less", {counted, zero}), flag("GreaterOrEqual", {counted, size})});
    const ValueId local = index("Sub", {counted, number(range.begin)});
    const ValueId has = flag("And", {flag("GreaterOrEqual", {local, zero}),
                                     flag("Less", {local, number(range.size())})});
    const ValueId otherwise = index("Where", {outside, size, zero});
    return {index("Where", {has, local, otherwise}), has};
  }

  void mask_rows(NodeId id, ValueId has, const ir::Value& rows, size_t row_dims) {
    const ValueId result = graph_.node(id).output(0);
    Writer behind = Writer::behind(graph_, id);
    const ValueId read = behind.value(rows.dtype, *rows.shape);
    give_instead(id, read);
    Shape spread = *graph_.value(has).shape;
    spread.resize(spread.size() + row_dims, Dim(1));
    const ValueId mask = row_dims == 0 ? has : behind.write("Reshape", {has}, DType::kBool, spread);
    const ValueId zero = scalar(rows.dtype, 0);
    const ValueId masked = behind.write("Where", {mask, read, zero}, rows.dtype, *rows.shape);
    exchange(behind, {.op = std::string(ir::kAllReduce)}, masked, result);
  }

  // From now on the symbol is this rank's count.
  void bind_symbols() {
    if (plan_.symbols.empty()) return;
    graph_.drop_requirements([&](const ir::Requirement& one) {
      return std::ranges::any_of(plan_.symbols, [&](const auto& entry) {
        const Dim symbol = Dim::symbol(entry.first);
        return one.left == symbol || one.right == symbol;
      });
    });
    for (const auto& [symbol, shares] : plan_.symbols) {
      graph_.require({Dim::symbol(symbol),
                      ir::Relation::kEqual,
                      length(own(shares)),
                      fmt::format("caches of rank {}", rank_),
                      {}});
    }
  }

  Graph& graph_;
  const Plan& plan_;
  size_t rank_;
  ShardingReport& report_;
  std::vector<std::tuple<std::pair<ValueId, size_t>, Shares, ValueId>> parts_;
};

}  // namespace

void rewrite(Graph& graph, const Plan& plan, int64_t rank, ShardingReport& report) {
  Rewriter(graph, plan, rank, report).run();
}

}  // namespace tenon::distributed
