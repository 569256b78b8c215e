#include "distributed/sharding/plan_attention.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/head_layout.h"

namespace tenon::distributed {
namespace {

using ir::Attention;
using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

enum Operand : size_t { kQ, kK, kV, kMask, kPastK, kPastV, kKvLengths, kSinks };
constexpr size_t kKScale = 13, kVScale = 14;

bool names(const Dim& dim, const std::string& symbol) {
  std::vector<std::string> symbols;
  dim.collect_symbols(symbols);
  return std::ranges::find(symbols, symbol) != symbols.end();
}

bool names(const Shape& shape, const std::string& symbol) {
  return std::ranges::any_of(shape, [&](const Dim& dim) { return names(dim, symbol); });
}

// Sizes in attributes are texts of dims; other texts may be no dims at all.
bool names_in_text(const std::string& text, const std::string& symbol) {
  if (text.find(symbol) == std::string::npos) return false;
  try {
    return names(Dim::parse(text), symbol);
  } catch (const UserError&) {
    return false;
  }
}

bool names(const Node& node, const std::string& symbol) {
  return std::ranges::any_of(node.attributes, [&](const auto& attribute) {
    if (const auto* text = std::get_if<std::string>(&attribute.second)) {
      return names_in_text(*text, symbol);
    }
    const auto* texts = std::get_if<std::vector<std::string>>(&attribute.second);
    return texts != nullptr && std::ranges::any_of(*texts, [&](const std::string& text) {
             return names_in_text(text, symbol);
           });
  });
}

class AttentionPlanner {
 public:
  AttentionPlanner(const Graph& graph, const Readers& readers, const Plan& before, NodeId id,
                   int64_t ranks)
      : graph_(graph),
        readers_(readers),
        known_symbols_(before.symbols),
        before_(before.decisions),
        id_(id),
        node_(graph.node(id)),
        attention_(Attention::from(node_)),
        ranks_(ranks) {}

  AttentionPlan run() {
    plan_.answer = choose_heads();
    if (plan_.answer) plan_.answer = check_caches();
    if (plan_.answer) plan_.answer = want_operands();
    if (plan_.answer) plan_.answer = find_region();
    return std::move(plan_);
  }

 private:
  Support choose_heads() {
    const auto heads = deal_heads(attention_.q_heads, attention_.kv_heads, ranks_);
    if (heads) {
      plan_.heads = *heads;
      return Support::yes();
    }
    return Support::no(fmt::format("{} heads of queries and {} of keys for {} ranks",
                                   attention_.q_heads, attention_.kv_heads, ranks_));
  }

  // A rank has its own heads in its caches only where the head dim of their inputs is a symbol.
  Support check_caches() {
    if (attention_.past_k == kNoValue && attention_.past_v == kNoValue) {
      return readers_of_present() ? Support::no("its present is read without a past")
                                  : Support::yes();
    }
    for (const ValueId past : {attention_.past_k, attention_.past_v}) {
      if (past == kNoValue || !graph_.is_input(past)) {
        return Support::no("its caches are no inputs of the graph");
      }
      const ir::Value& cache = graph_.value(past);
      if (!cache.shape || cache.shape->size() != 4) return Support::no("its caches have no shape");
      const Dim& heads = (*cache.shape)[1];
      if (heads.is_constant()) {
        return Support::no(fmt::format(
            "the file says that its caches have {} heads; in one that `tenon ranks` writes a rank "
            "binds its own",
            heads.text()));
      }
      if (Support own = check_symbol(past, heads); !own) return own;
    }
    return readers_of_present() ? Support::no("another node reads its present") : Support::yes();
  }

  bool readers_of_present() const {
    return std::ranges::any_of(std::vector<size_t>{1, 2}, [&](size_t output) {
      const ValueId present = node_.output(output);
      return present != kNoValue && !readers_.of(present).empty();
    });
  }

  // The symbol means what a rank binds from now on, so nothing else may count on it.
  Support check_symbol(ValueId past, const Dim& heads) {
    std::vector<std::string> symbols;
    heads.collect_symbols(symbols);
    const std::string symbol = symbols.at(0);
    if (!(heads == Dim::symbol(symbol)) || readers_.of(past) != std::vector<NodeId>{id_}) {
      return Support::no(fmt::format("'{}' has other uses", graph_.value(past).name));
    }
    if (const auto known = known_symbols_.find(symbol); known != known_symbols_.end()) {
      return known->second == plan_.heads.kv
                 ? Support::yes()
                 : Support::no(fmt::format("'{}' counts heads of other caches", symbol));
    }
    plan_.symbols[symbol] = plan_.heads.kv;
    return check_other_uses(heads, symbol);
  }

  Support check_other_uses(const Dim& heads, const std::string& symbol) const {
    for (const NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      const bool sized = std::ranges::any_of(node.outputs, [&](ValueId output) {
        return output != kNoValue && graph_.value(output).shape && !node.is(ir::kAttention) &&
               names(*graph_.value(output).shape, symbol);
      });
      if (sized || names(node, symbol)) {
        return Support::no(fmt::format("{} '{}' counts on '{}', the heads of its caches", node.op,
                                       node.name, symbol));
      }
    }
    const Dim all = attention_.kv_heads;
    for (const ir::Requirement& one : graph_.requirements()) {
      const bool is_count =
          one.relation == ir::Relation::kEqual &&
          ((one.left == heads && one.right == all) || (one.right == heads && one.left == all));
      if (!is_count && (names(one.left, symbol) || names(one.right, symbol))) {
        return Support::no(
            fmt::format("'{}' asks more of '{}' than that it is {}", one.node, symbol, all.text()));
      }
    }
    return Support::yes();
  }

  // Where heads lie, cut as ranks have them.
  std::optional<Cut> head_cut(ValueId id, const std::string& layout, const Shares& shares,
                              int64_t heads) const {
    const auto& shape = graph_.value(id).shape;
    const auto [axes, first_head, is_packed] = ir::HeadLayout::parse(layout);
    if (!shape || is_packed) return std::nullopt;
    if (axes == "bs(hd)" && shape->size() == 3 && shape->back().is_constant() &&
        shape->back().value() % heads == 0) {
      return Cut{2, times(shares, shape->back().value() / heads)};
    }
    if (shape->size() != 4 || axes == "bs(hd)") return std::nullopt;
    const size_t axis = axes == "bshd" ? 2 : 1;
    if (!(*shape)[axis].is(heads)) return std::nullopt;
    return Cut{axis, shares};
  }

  Support want_operands() {
    const auto want = [&](size_t operand, std::optional<Cut> cut) {
      if (cut) wanted_.push_back({node_.input(operand), operand, std::move(*cut)});
      return cut.has_value();
    };
    const auto& [q, kv] = plan_.heads;
    const int64_t q_heads = attention_.q_heads, kv_heads = attention_.kv_heads;
    const bool all = want(kQ, head_cut(attention_.q, attention_.q_layout, q, q_heads)) &&
                     want(kK, head_cut(attention_.k, attention_.k_layout, kv, kv_heads)) &&
                     want(kV, head_cut(attention_.v, attention_.v_layout, kv, kv_heads));
    if (!all) return Support::no("its heads are not laid out in a dim of their own");
    if (attention_.sinks != kNoValue) {
      const auto& shape = graph_.value(attention_.sinks).shape;
      if (!shape || shape->size() != 1) return Support::no("its sinks have no known shape");
      want(kSinks, Cut{0, q});
    }
    if (Support mask = want_mask(); !mask) return mask;
    if (Support keys = want_scale(kKScale); !keys) return keys;
    return want_scale(kVScale);
  }

  // Broadcast to [B, H, Sq, Sk].
  Support want_mask() {
    if (attention_.mask == kNoValue) return Support::yes();
    const auto& shape = graph_.value(attention_.mask).shape;
    if (!shape) return Support::no("the shape of its mask is not known");
    if (shape->size() < 3 || (*shape)[shape->size() - 3].is(1)) return Support::yes();
    const size_t axis = shape->size() - 3;
    if (!(*shape)[axis].is(attention_.q_heads)) {
      return Support::no("the heads of its mask are not known");
    }
    wanted_.push_back({attention_.mask, kMask, {axis, plan_.heads.q}});
    return Support::yes();
  }

  // One for all, or for each element of each head.
  Support want_scale(size_t operand) {
    const ValueId id = node_.input(operand);
    if (id == kNoValue) return Support::yes();
    const auto& shape = graph_.value(id).shape;
    if (!shape) return Support::no("the shape of its caches' scale is not known");
    const auto dim = std::ranges::find_if(*shape, [](const Dim& size) { return !size.is(1); });
    if (dim == shape->end()) return Support::yes();
    if (!dim->is_constant() || dim->value() % attention_.kv_heads != 0) {
      return Support::no("scales of its caches are not told apart by heads");
    }
    wanted_.push_back({id,
                       operand,
                       {static_cast<size_t>(dim - shape->begin()),
                        times(plan_.heads.kv, dim->value() / attention_.kv_heads)}});
    return Support::yes();
  }

  Support find_region() {
    const ValueId y = node_.output(0);
    const auto cut = head_cut(y, attention_.y_layout, plan_.heads.q, attention_.q_heads);
    if (!cut) return Support::no("heads of its result are not laid out in a dim of their own");
    Region on(graph_, readers_, before_, id_), up_to(graph_, readers_, before_, id_);
    const bool goes_on = on.find(wanted_, y, *cut);
    if (!goes_on && !up_to.find(wanted_)) return Support::no(up_to.reason());
    if (!goes_on) plan_.gathered = cut;
    plan_.decisions = goes_on ? on.decisions() : up_to.decisions();
    for (const ValueId cache :
         {attention_.past_k, attention_.past_v, node_.output(1), node_.output(2)}) {
      if (cache != kNoValue) plan_.decisions.cuts[cache] = {1, plan_.heads.kv};
    }
    return Support::yes();
  }

  const Graph& graph_;
  const Readers& readers_;
  const std::map<std::string, Shares>& known_symbols_;
  const Decisions& before_;
  NodeId id_;
  const Node& node_;
  Attention attention_;
  int64_t ranks_;
  std::vector<Region::Wanted> wanted_;
  AttentionPlan plan_;
};

}  // namespace

AttentionPlan plan_attention(const Graph& graph, const Readers& readers, const Plan& before,
                             NodeId id, int64_t ranks) {
  return AttentionPlanner(graph, readers, before, id, ranks).run();
}

}  // namespace tenon::distributed
