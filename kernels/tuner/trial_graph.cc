#include "kernels/tuner/trial_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>

#include "graph_partitioner/ir/fusions.h"
#include "kernels/planning/symbol_binding.h"

namespace tenon::kernels {
namespace {

constexpr int kFewestCopies = 4;
constexpr int64_t kMostOutputBytes = int64_t{1} << 30;  // of all copies

std::vector<int64_t> numbers(const Shape& shape, const Sizes& sizes) {
  std::vector<int64_t> dims;
  for (const Dim& dim : shape) dims.push_back(sizes.of(dim));
  return dims;
}

int64_t bytes_of(const ir::Value& value, const Sizes& sizes) {
  int64_t elements = 1;
  for (const int64_t dim : numbers(*value.shape, sizes)) elements *= dim;
  return static_cast<int64_t>(storage_bytes(value.dtype, elements));
}

void collect_symbols(const ir::Graph& graph, std::vector<std::string>& into) {
  for (size_t id = 0; id < graph.value_count(); ++id) {
    const ir::Value& value = graph.value(static_cast<ir::ValueId>(id));
    for (const auto* dims : {&value.shape, &value.elements}) {
      if (!dims->has_value()) continue;
      for (const Dim& dim : **dims) dim.collect_symbols(into);
    }
  }
  for (const ir::NodeId id : graph.order()) {
    if (graph.node(id).body) collect_symbols(*graph.node(id).body, into);
  }
}

class TrialWriter {
 public:
  TrialWriter(const ir::Graph& fused, const ir::Node& node, const Sizes& sizes)
      : fused_(fused), node_(node), sizes_(sizes) {
    if (node.is(ir::kAttention)) attention_ = ir::Attention::from(node);
  }

  TrialGraph write(int64_t cold_bytes, int most_copies, int together) {
    made_.graph.name = "trial";
    made_.copies = std::min(copies_for(cold_bytes), most_copies);
    made_.together = std::min(together, made_.copies);
    const int groups = (made_.copies + made_.together - 1) / made_.together;
    made_.copies = std::min(groups, most_copies / made_.together) * made_.together;
    for (int copy = 0; copy < made_.copies; ++copy) add_copy(copy);
    bind_symbols();
    return std::move(made_);
  }

 private:
  int copies_for(int64_t cold_bytes) const {
    int64_t cold = 1, written = 1;
    for (const ir::ValueId id : node_.inputs) {
      if (id != ir::kNoValue && is_own(id)) cold += bytes_of(fused_.value(id), sizes_);
    }
    for (const ir::ValueId id : node_.outputs) {
      if (id != ir::kNoValue) written += bytes_of(fused_.value(id), sizes_);
    }
    const int64_t wanted = (cold_bytes + cold - 1) / cold;
    const int64_t allowed = std::max<int64_t>(kMostOutputBytes / written, 2);
    return static_cast<int>(std::min(std::max<int64_t>(wanted, kFewestCopies), allowed));
  }

  // Sizes are as open as in the model, whose kernels and configs may depend on it. A Run tells some
  // of them by inputs that other nodes read.
  void bind_symbols() {
    std::vector<std::string> symbols;
    collect_symbols(made_.graph, symbols);
    for (const std::string& symbol : std::set<std::string>(symbols.begin(), symbols.end())) {
      const Dim dim = Dim::symbol(symbol);
      if (SymbolBinding(made_.graph).covers(dim)) continue;
      ir::Value teller;
      teller.name = "tells " + symbol;
      teller.dtype = DType::kU8;
      teller.shape = Shape{dim};
      made_.graph.add_input(std::move(teller));
      made_.inputs.push_back({TrialInput::Holds::kZeros, DType::kU8, {sizes_.of(dim)}});
    }
  }

  bool is_cache(ir::ValueId id) const {
    return attention_ && (id == attention_->past_k || id == attention_->past_v);
  }
  // A copy has weights and caches to itself; what a launch before has made is the same for all.
  bool is_own(ir::ValueId id) const { return fused_.value(id).is_constant() || is_cache(id); }

  void add_copy(int copy) {
    ir::Node node = node_;
    node.name = fmt::format("copy {}", copy);
    std::map<ir::ValueId, ir::ValueId> own;
    for (ir::ValueId& id : node.inputs) {
      if (id != ir::kNoValue) id = input_of(id, own);
    }
    node.outputs.clear();
    for (const ir::ValueId id : node_.outputs) {
      node.outputs.push_back(id == ir::kNoValue ? ir::kNoValue : output_of(id));
    }
    made_.graph.add_node(node);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == ir::kNoValue) continue;
      made_.graph.add_output(node.outputs[i]);
      add_output(made_.graph.value(node.outputs[i]), i, own);
    }
  }

  ir::ValueId input_of(ir::ValueId id, std::map<ir::ValueId, ir::ValueId>& own) {
    std::map<ir::ValueId, ir::ValueId>& known = is_own(id) ? own : shared_;
    if (const auto found = known.find(id); found != known.end()) return found->second;
    const ir::Value& value = fused_.value(id);
    if (value.is_constant()) {
      return known[id] = made_.graph.add_constant(value.name,
                                                  std::make_shared<ir::Tensor>(*value.constant));
    }
    ir::Value input = open_value(value);
    made_.inputs.push_back(describe(id, numbers(*value.shape, sizes_)));
    place_[known[id] = made_.graph.add_input(std::move(input))] = made_.inputs.size() - 1;
    return known[id];
  }

  ir::ValueId output_of(ir::ValueId id) {
    return made_.graph.add_value(open_value(fused_.value(id)));
  }

  // Nobody has made it yet.
  ir::Value open_value(const ir::Value& like) const {
    ir::Value value;
    value.name = like.name;
    value.dtype = like.dtype;
    value.shape = like.shape;
    return value;
  }

  TrialInput describe(ir::ValueId id, std::vector<int64_t> dims) const {
    using Holds = TrialInput::Holds;
    TrialInput input{Holds::kNumbers, fused_.value(id).dtype, std::move(dims)};
    if (attention_ && id == attention_->kv_lengths) {
      input.holds = Holds::kKeyCounts;
      input.limit = keys();
    } else if (attention_ && id == attention_->positions) {
      input.holds = Holds::kPositions;
      const auto& rows = fused_.value(attention_->cos).shape;
      input.limit = sizes_.of(rows->size() == 3 ? (*rows)[1] : (*rows)[0]);
    } else if (is_integer(input.dtype)) {
      input.holds = bit_width(input.dtype) > 8 ? Holds::kZeros : Holds::kCodes;
    }
    return input;
  }

  // Of a batch row, all of which count: what present has room for, else what k has.
  int64_t keys() const {
    const auto rows = [&](ir::ValueId id, std::string_view layout) {
      const Shape& shape = *fused_.value(id).shape;
      return sizes_.of(shape[layout == "bhsd" ? 2 : 1]);
    };
    if (attention_->past_k != ir::kNoValue) return rows(attention_->past_k, "bhsd");
    return rows(attention_->k, attention_->k_layout);
  }

  void add_output(const ir::Value& value, size_t number,
                  const std::map<ir::ValueId, ir::ValueId>& own) {
    TrialOutput output{value.dtype, numbers(*value.shape, sizes_), std::nullopt};
    if (attention_ && number > 0) {
      const ir::ValueId past = number == 1 ? attention_->past_k : attention_->past_v;
      if (const auto cache = own.find(past); cache != own.end()) {
        const size_t place = place_.at(cache->second);
        if (made_.inputs[place].dims == output.dims) output.in_place_of = place;
      }
    }
    made_.outputs.push_back(std::move(output));
  }

  const ir::Graph& fused_;
  const ir::Node& node_;
  const Sizes& sizes_;
  std::optional<ir::Attention> attention_;
  TrialGraph made_;
  std::map<ir::ValueId, ir::ValueId> shared_;
  std::map<ir::ValueId, size_t> place_;  // of inputs of the made graph
};

}  // namespace

TrialGraph make_trial_graph(const ir::Graph& fused, const ir::Node& node, const Sizes& sizes,
                            int64_t cold_bytes, int most_copies, int together) {
  return TrialWriter(fused, node, sizes).write(cold_bytes, most_copies, together);
}

void separate_groups(const TrialGraph& trial, Program& program) {
  const auto copies = static_cast<size_t>(trial.copies), launches = program.launches.size();
  if (trial.together == trial.copies || launches % copies != 0) return;
  const size_t group = launches / copies * static_cast<size_t>(trial.together);
  for (size_t i = group; i < launches; i += group) program.launches[i].after_all = true;
}

}  // namespace tenon::kernels
