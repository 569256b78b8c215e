#include "graph_partitioner/partition.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/thread_pool.h"
#include "graph_partitioner/ir/extract.h"
#include "graph_partitioner/ir/input_symbols.h"
#include "graph_partitioner/ir/known_ops.h"
#include "graph_partitioner/passes/fold_constants.h"
#include "graph_partitioner/passes/form_partitions.h"
#include "graph_partitioner/passes/infer_shapes.h"
#include "graph_partitioner/passes/partition_cost.h"
#include "graph_partitioner/passes/spared_copies.h"
#include "graph_partitioner/passes/stock_kernels.h"
#include "graph_partitioner/pipeline.h"

namespace tenon {
namespace {

using ir::kNoValue;

// Rounds of "drop what does not fit, group again" before whole groups are dropped.
constexpr int kMaxRounds = 16;

bool must_not_cross(DType dtype) { return is_small_float(dtype) || is_packed(dtype); }

std::string label(const ir::Node& node) {
  return node.name.empty() ? node.op : fmt::format("'{}' ({})", node.name, node.op);
}

class Partitioner {
 public:
  Partitioner(const ir::Graph& imported, const SupportsFn& supports,
              const PartitionOptions& options)
      : graph_(imported), supports_(supports), options_(options) {
    for (size_t i = 0; i < graph_.order().size(); ++i) {
      const ir::Node& node = at(i);
      if (node.sources.size() != 1) {
        throw InternalError(fmt::format("imported node {} must have one source", label(node)));
      }
      position_.emplace(node.sources[0], i);
    }
    reasons_.resize(graph_.order().size());
  }

  Partitioning run() {
    refuse_excluded();
    infer_whole();
    if (weighs_against_stock()) refuse_integer_groups();
    refuse_unsupported_whole();
    do {
      group_until_stable();
    } while (drop_without_gain() || leave_quantisers_of_others());
    return result();
  }

 private:
  const ir::Node& at(size_t position) const { return graph_.node(graph_.order()[position]); }
  int source(size_t position) const { return at(position).sources[0]; }
  bool claimable(size_t position) const { return reasons_[position].empty(); }

  // The first reason is the best: later ones follow from it. True when it is news.
  bool refuse(size_t position, const std::string& reason) {
    if (!claimable(position)) return false;
    reasons_[position] = reason.empty() ? "not supported" : reason;
    return true;
  }

  // What is known of every value, whoever runs the nodes. Declared shapes are believed of nodes
  // only that nothing of ours can run: those which have no rule, and those whose results no rule
  // can tell, which are refused here. A partition behind them is held to what it was told of its
  // inputs when it runs.
  void infer_whole() {
    ir::Graph inferred;
    std::map<size_t, std::string> untold;
    for (const bool with_folding : {false, true}) {
      untold.clear();
      inferred = without_unknown_ops();
      forget_declared_shapes(inferred);
      if (with_folding) fold_constants(inferred);
      ShapeInference inference(inferred);
      for (size_t i = 0; i < reasons_.size(); ++i) {
        const Support fits = inference.infer(graph_.order()[i]);
        if (!keep_declared(inferred, at(i))) continue;
        untold[i] = fits ? "its output shape cannot be inferred before Run"
                         : "its sizes contradict each other: " + fits.reason;
      }
      if (untold.empty()) break;
    }
    for (const auto& [position, reason] : untold) {
      if (refuse(position, reason)) untold_.insert(position);
    }
    told_ = graph_;
    for (ir::ValueId id = 0; id < static_cast<ir::ValueId>(graph_.value_count()); ++id) {
      told_.value(id).shape = inferred.value(id).shape;
      told_.value(id).elements = inferred.value(id).elements;
    }
    refuse_sources_of_sizes();
    find_host_evaluated();
    find_fully_declared();
  }

  // An op without a rule whose result has a size that nothing before it has is none of ours: no
  // Run could tell that size before the op has run. Who reads it gets the size from it.
  void refuse_sources_of_sizes() {
    ir::InputSymbols known = input_symbols_;
    for (size_t i = 0; i < reasons_.size(); ++i) {
      for (const ir::ValueId output : at(i).outputs) {
        if (output == kNoValue || !told_.value(output).shape) continue;
        const Shape& shape = *told_.value(output).shape;
        if (!known.tell(shape) && !has_shape_rule(at(i).op)) {
          const Support answer = ask(graph_, at(i));
          refuse(i, answer ? "its output shape cannot be inferred before Run" : answer.reason);
        }
        known.add(shape);
      }
    }
  }

  // No rule knows what an op means that has attributes, inputs or outputs of a newer one.
  ir::Graph without_unknown_ops() const {
    ir::Graph whole = graph_;
    for (const ir::NodeId id : graph_.order()) {
      if (!ir::is_known(graph_.node(id))) whole.node(id).op = "unknown::" + graph_.node(id).op;
    }
    return whole;
  }

  // True where a result has only the shape that was declared.
  bool keep_declared(ir::Graph& inferred, const ir::Node& node) const {
    bool is_kept = false;
    for (const ir::ValueId output : node.outputs) {
      if (output == kNoValue || inferred.value(output).shape || !graph_.value(output).shape)
        continue;
      inferred.value(output).shape = sizes_of_its_own(graph_.value(output));
      is_kept = true;
    }
    return is_kept;
  }

  // A name that no input has says nothing of two tensors: exporters give it to the results of equal
  // code, whose sizes differ.
  Shape sizes_of_its_own(const ir::Value& declared) const {
    Shape sizes = *declared.shape;
    for (size_t axis = 0; axis < sizes.size(); ++axis) {
      if (!input_symbols_.tell(sizes[axis])) {
        sizes[axis] = Dim::symbol(fmt::format("{}:{}", declared.name, axis));
      }
    }
    return sizes;
  }

  // Nodes whose results are dims: the executable writes them itself wherever somebody reads them,
  // so a consumer that is left out is no reason to leave them out.
  void find_host_evaluated() {
    host_evaluated_.assign(reasons_.size(), 0);
    for (size_t i = 0; i < reasons_.size(); ++i) {
      const auto& outputs = at(i).outputs;
      host_evaluated_[i] = std::all_of(outputs.begin(), outputs.end(), [&](ir::ValueId id) {
        return id == kNoValue || told_.value(id).elements.has_value();
      });
    }
  }

  // Nodes that can be left out and their readers still know as much of their operands' sizes.
  void find_fully_declared() {
    fully_declared_.assign(reasons_.size(), 0);
    for (size_t i = 0; i < reasons_.size(); ++i) {
      const auto& outputs = at(i).outputs;
      fully_declared_[i] = std::all_of(outputs.begin(), outputs.end(), [&](ir::ValueId id) {
        return id == kNoValue || graph_.value(id).shape == told_.value(id).shape;
      });
    }
  }

  void refuse_excluded() {
    const auto listed = [](const std::vector<std::string>& list, const std::string& word) {
      return std::find(list.begin(), list.end(), word) != list.end();
    };
    for (size_t i = 0; i < reasons_.size(); ++i) {
      const ir::Node& node = at(i);
      if (listed(options_.exclude_ops, node.op)) {
        refuse(i, fmt::format("excluded by the option exclude_ops ({})", node.op));
      } else if (listed(options_.exclude_nodes, node.name)) {
        refuse(i, "excluded by the option exclude_nodes");
      } else if (const char* kind = foreign_kind(node)) {
        refuse(i, fmt::format("{} are not tensors of numbers", kind));
      } else if (const Support known = ir::is_known(node); !known) {
        refuse(i, known.reason);
      }
    }
  }

  const char* foreign_kind(const ir::Node& node) const {
    for (const auto* list : {&node.inputs, &node.outputs}) {
      for (ir::ValueId id : *list) {
        if (id == kNoValue) continue;
        if (graph_.value(id).dtype == DType::kString) return "strings";
        if (graph_.value(id).dtype == DType::kUndefined) return "sequences, maps and optionals";
      }
    }
    return nullptr;
  }

  // All that is left as if it were one partition: a refused node is not matched into its
  // neighbours.
  void refuse_unsupported_whole() {
    std::vector<size_t> everything(reasons_.size());
    for (size_t i = 0; i < everything.size(); ++i) everything[i] = i;
    check_whole(everything);
    if (weighs_against_stock()) refuse_products_without_gain();
  }

  // Do stock kernels of the same processor stand behind us?
  bool weighs_against_stock() const { return options_.on_host && !options_.claim_all; }

  size_t position_of(ir::NodeId id) const { return position_.at(graph_.node(id).sources[0]); }

  // Ours would be of floats: exact, and slower.
  void refuse_integer_groups() {
    for (const IntegerGroup& group : integer_groups(graph_)) {
      for (const ir::NodeId id : group.nodes) refuse(position_of(id), group.reason);
    }
  }

  // A node that quantises goes with those that it serves. True when one was refused.
  bool leave_quantisers_of_others() {
    if (!weighs_against_stock()) return false;
    const auto is_left = [&](ir::NodeId id) { return !claimable(position_of(id)); };
    bool changed_any = false;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < reasons_.size(); ++i) {
        if (!claimable(i)) continue;
        const ir::NodeId served = served_by_others(graph_, graph_.order()[i], is_left);
        if (served == ir::kNoNode) continue;
        changed |= refuse(i, fmt::format("it quantises for {}, which stays with others",
                                         label(graph_.node(served))));
      }
      changed_any |= changed;
    }
    return changed_any;
  }

  // Only the products themselves: what was fused into them may gain in a loop of its own.
  void refuse_products_without_gain() {
    try {
      fuse_whole();
    } catch (const std::exception&) {
      return;  // refused with that reason where it is checked
    }
    const ir::Graph& fused = whole_;
    const bool has_cache = decodes(fused);
    for (const ir::NodeId id : fused.order()) {
      const HostGain gain = product_gains_on_host(fused, fused.node(id), has_cache);
      if (gain.support) continue;
      for (const size_t position : positions(fused.node(id).sources)) {
        const bool can_go = gain.costs_much || fully_declared_[position];
        if (is_product(at(position)) && can_go) refuse(position, gain.support.reason);
      }
    }
  }

  size_t count_refused() const {
    return reasons_.size() - std::count(reasons_.begin(), reasons_.end(), std::string());
  }

  // Fusing costs more than all the rest here: what was fused is good until a node is refused.
  void fuse_whole() {
    if (whole_without_ == count_refused()) return;
    whole_without_.reset();
    std::vector<size_t> members;
    for (size_t i = 0; i < reasons_.size(); ++i) {
      if (claimable(i)) members.push_back(i);
    }
    whole_ = fuse(cut(members).graph);
    whole_without_ = count_refused();
  }

  // Those nodes as a graph of their own, as the runtime hands it to who compiles them, and what the
  // whole graph knows of its inputs.
  struct Cut {
    ir::Graph graph;
    std::vector<ir::InputFacts> inputs;
  };
  Cut cut(const std::vector<size_t>& members) const {
    Cut result{ir::extract(graph_, sources_of(members)), {}};
    result.inputs = ir::facts_of_inputs(result.graph, told_);
    ir::tell_inputs(result.graph, result.inputs);
    return result;
  }

  void check_whole(const std::vector<size_t>& everything) {
    try {
      fuse_whole();
    } catch (const std::exception& error) {
      refuse_all(everything, fmt::format("could not be compiled: {}", error.what()));
      return;
    }
    for (const ir::NodeId id : whole_.order()) {
      std::vector<size_t> stands_for = positions(whole_.node(id).sources);
      if (stands_for.size() > 1) together_.push_back(std::move(stands_for));
    }
    refuse_unsupported(whole_, everything);
  }

  // Fuses the group and refuses what nothing can run; true when that changed something.
  bool check_group(const std::vector<size_t>& members) {
    try {
      fused_groups_.push_back(fuse(cut(members).graph));
    } catch (const std::exception& error) {
      return refuse_all(members, fmt::format("could not be compiled: {}", error.what()));
    }
    return refuse_unsupported(fused_groups_.back(), members);
  }

  // Refuses the imported nodes of every fused node that nothing can run; true when that changed
  // something.
  bool refuse_unsupported(const ir::Graph& fused, const std::vector<size_t>& members) {
    const std::vector<ir::NodeId>& order = fused.order();
    std::vector<Support> answers(order.size(), Support::yes());
    constexpr size_t kWorthThreads = 32;
    parallel_for_each(
        static_cast<int64_t>(order.size()),
        [&](int64_t i) { answers[i] = ask(fused, fused.node(order[i])); },
        order.size() < kWorthThreads ? 1 : 0);
    bool changed = false;
    for (size_t i = 0; i < order.size(); ++i) {
      const ir::Node& node = fused.node(order[i]);
      const Support& support = answers[i];
      if (!support) changed |= refuse_fused(node, positions(node.sources), members, support.reason);
    }
    return changed;
  }

  Support ask(const ir::Graph& fused, const ir::Node& node) const {
    try {
      return supports_(fused, node);
    } catch (const std::exception& error) {
      return Support::no(error.what());
    }
  }

  bool refuse_behind_lost_rank(const std::vector<size_t>& stands_for) {
    bool changed = false;
    for (const size_t position : stands_for) {
      if (const auto because = because_of_lost_rank(position)) {
        changed |= refuse(position, *because);
      }
    }
    return changed;
  }

  // What cannot run because a node before it took the rank of an operand away names that node, not
  // the one that it reads.
  std::optional<std::string> because_of_lost_rank(size_t position) const {
    size_t root = position;
    for (auto next = source_of_lost_rank(root); next; next = source_of_lost_rank(root)) {
      root = *next;
    }
    if (root == position || claimable(root)) return std::nullopt;
    return fmt::format("because {} before it is left to others: {}", label(at(root)),
                       reasons_[root]);
  }

  // The same where what computes a node's sizes is behind such a node.
  std::optional<std::string> because_of_lost_sizes(size_t position) const {
    for (std::optional<size_t> next = position; next; next = source_of_lost_elements(*next)) {
      if (auto because = because_of_lost_rank(*next)) return because;
    }
    return std::nullopt;
  }

  // Who makes an operand of unknown rank.
  std::optional<size_t> source_of_lost_rank(size_t position) const {
    return source_of_first(position, [&](ir::ValueId id) { return !told_.value(id).shape; });
  }

  // Who makes a small operand of integers that are not known, as sizes are.
  std::optional<size_t> source_of_lost_elements(size_t position) const {
    return source_of_first(position, [&](ir::ValueId id) {
      const ir::Value& value = told_.value(id);
      return is_integer(value.dtype) && value.shape && value.shape->size() < 2 && !value.elements;
    });
  }

  template <typename Lacks>
  std::optional<size_t> source_of_first(size_t position, const Lacks& lacks) const {
    for (const ir::ValueId input : at(position).inputs) {
      if (input == kNoValue || !lacks(input)) continue;
      if (const ir::Node* producer = graph_.producer(input)) {
        return position_.at(producer->sources[0]);
      }
    }
    return std::nullopt;
  }

  bool refuse_fused(const ir::Node& node, const std::vector<size_t>& stands_for,
                    const std::vector<size_t>& members, const std::string& why) {
    if (refuse_behind_lost_rank(stands_for)) return true;
    // Under its own name: what dissolved into it, such as a view that changes nothing, is not at
    // fault and may fit without it.
    bool changed = false;
    for (size_t position : stands_for) {
      if (at(position).op == node.op) changed |= refuse(position, why);
    }
    if (changed) return true;
    const std::string reason = fmt::format("{}: {}", node.op, why);
    for (size_t position : stands_for) {
      if (!host_evaluated_[position]) changed |= refuse(position, reason);
    }
    if (changed) return true;
    if (!stands_for.empty()) return refuse_all(stands_for, reason);
    return refuse_all(members, reason);  // nobody's node: the part as a whole does not run
  }

  bool refuse_all(const std::vector<size_t>& members, const std::string& reason) {
    bool changed = false;
    for (size_t position : members) changed |= refuse(position, reason);
    return changed;
  }

  std::vector<size_t> positions(const std::vector<int>& sources) const {
    std::vector<size_t> result;
    for (int id : sources) {
      const auto found = position_.find(id);
      if (found != position_.end()) result.push_back(found->second);
    }
    return result;
  }

  std::vector<int> sources_of(const std::vector<size_t>& members) const {
    std::vector<int> sources;
    for (size_t position : members) sources.push_back(source(position));
    std::sort(sources.begin(), sources.end());
    return sources;
  }

  void group() {
    std::vector<char> claimed(reasons_.size());
    for (size_t i = 0; i < claimed.size(); ++i) claimed[i] = claimable(i);
    grouping_ = form_partitions(graph_, claimed, together_);
  }

  // Groups, and each group cut out and fused by itself, until every part runs on its own.
  void group_until_stable() {
    for (int round = 0;; ++round) {
      fused_groups_.clear();
      leave_quantisers_of_others();
      group();
      if (refuse_illegal_cuts()) continue;
      const bool one_group_is_all =
          grouping_.groups.size() == 1 && grouping_.groups[0].size() == reasons_.size();
      if (one_group_is_all) return fused_groups_.push_back(std::move(whole_));
      bool changed = false;
      for (const auto& members : grouping_.groups) {
        const bool misfit = check_group(members);
        if (misfit && round >= kMaxRounds) {
          refuse_all(members, "no partition with its neighbours compiles");
        }
        changed |= misfit;
      }
      if (!changed) return;
    }
  }

  // A small float or sub-byte tensor between two nodes stays inside one partition or outside all.
  bool refuse_illegal_cuts() {
    bool changed = false;
    for (size_t i = 0; i < reasons_.size(); ++i) {
      for (ir::ValueId input : at(i).inputs) {
        if (input == kNoValue || !must_not_cross(graph_.value(input).dtype)) continue;
        const ir::Node* producer = graph_.producer(input);
        if (!producer) continue;
        const size_t from = position_.at(producer->sources[0]);
        const bool inside =
            claimable(from) && claimable(i) && grouping_.level[from] == grouping_.level[i];
        if (inside) continue;
        const std::string what =
            fmt::format("the {} tensor '{}' cannot be an input or output of a partition",
                        name(graph_.value(input).dtype), graph_.value(input).name);
        changed |=
            refuse(from, fmt::format("{}, and {} is not claimed with it", what, label(at(i))));
        changed |=
            refuse(i, fmt::format("{}, and {} is not claimed with it", what, label(*producer)));
      }
    }
    return changed;
  }

  // True where parts of a group may gain what the whole does not: groups have to be formed again.
  bool drop_without_gain() {
    if (options_.claim_all) return false;
    std::vector<Support> gains;
    for (size_t i = 0; i < grouping_.groups.size(); ++i) {
      const ir::Graph imported = cut(grouping_.groups[i]).graph;
      const ir::Graph& fused = fused_groups_.at(i);
      gains.push_back(is_gainful(imported, fused, options_.on_host));
      if (gains[i] && options_.on_host && !options_.of_several_ranks) {
        gains[i] = saves_time_on_host(graph_, imported, fused);
      }
    }
    if (!options_.on_host) count_spared_copies(graph_, grouping_.groups, gains);
    bool changed = false;
    for (size_t i = 0; i < gains.size(); ++i) {
      if (gains[i]) continue;
      const bool has_products =
          options_.on_host && refuse_plain_products(fused_groups_.at(i), gains[i].reason);
      if (!has_products) refuse_all(grouping_.groups[i], gains[i].reason);
      changed |= has_products;
    }
    return changed;
  }

  bool refuse_plain_products(const ir::Graph& fused, const std::string& reason) {
    bool changed = false;
    for (const ir::NodeId id : fused.order()) {
      if (!stock_multiplies_as_fast(fused, fused.node(id))) continue;
      for (const size_t position : positions(fused.node(id).sources)) {
        if (is_product(at(position))) changed |= refuse(position, reason);
      }
    }
    return changed;
  }

  Partitioning result() const {
    Partitioning partitioning;
    for (const auto& members : grouping_.groups) {
      if (!claimable(members.front())) continue;
      partitioning.partitions.push_back({sources_of(members), cut(members).inputs});
    }
    for (size_t i = 0; i < reasons_.size(); ++i) {
      if (!claimable(i)) partitioning.left_out.push_back({source(i), told_reason(i)});
    }
    return partitioning;
  }

  std::string told_reason(size_t position) const {
    const auto because =
        untold_.contains(position) ? because_of_lost_sizes(position) : std::nullopt;
    return because.value_or(reasons_[position]);
  }

  const ir::Graph& graph_;
  const ir::InputSymbols input_symbols_{graph_};
  const SupportsFn& supports_;
  const PartitionOptions& options_;
  std::map<int, size_t> position_;             // by source
  std::vector<std::string> reasons_;           // by position; empty: claimable
  ir::Graph told_;                             // graph_ with what was inferred of its values
  std::set<size_t> untold_;                    // positions whose results no rule could tell
  std::vector<char> host_evaluated_;           // by position
  std::vector<char> fully_declared_;           // by position
  std::vector<std::vector<size_t>> together_;  // positions fused into one node
  ir::Graph whole_;                            // fused, but for what was refused by then:
  std::optional<size_t> whole_without_;        // so many nodes
  Grouping grouping_;
  std::vector<ir::Graph> fused_groups_;  // of the grouping, once it is stable
};

// Nodes left to others that have no kernel for them: such a graph does not run.
size_t count_stranded(const ir::Graph& imported, const Partitioning& partitioning) {
  std::set<int> left;
  for (const LeftOut& one : partitioning.left_out) left.insert(one.source);
  const std::vector<ir::NodeId>& order = imported.order();
  return std::count_if(order.begin(), order.end(), [&](ir::NodeId id) {
    const ir::Node& node = imported.node(id);
    return left.contains(node.sources[0]) && lacks_stock_kernel(imported, node);
  });
}

}  // namespace

// Where weighing strands a node, since its neighbours told its sizes, all is claimed that can be.
Partitioning partition(const ir::Graph& imported, const SupportsFn& supports,
                       const PartitionOptions& options) {
  Partitioning weighed = Partitioner(imported, supports, options).run();
  if (!options.on_host || options.claim_all) return weighed;
  const size_t stranded = count_stranded(imported, weighed);
  if (stranded == 0) return weighed;
  PartitionOptions all = options;
  all.claim_all = true;
  Partitioning unweighed = Partitioner(imported, supports, all).run();
  return count_stranded(imported, unweighed) < stranded ? unweighed : weighed;
}

}  // namespace tenon
