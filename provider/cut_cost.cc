#include "provider/cut_cost.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tenon::provider {
namespace {

// A tensor that is copied between GPU and CPU while both wait for it, on an H200 as
// scripts/measure_cuts.py measures it: 12 us for 16 KB, 176 for 1 MB, 1964 for 16 MB.
constexpr double kMicrosecondsPerCopy = 15;
constexpr double kBytesPerMicrosecond = 8000;

class Crossings {
 public:
  explicit Crossings(const Claims& claims)
      : graph_(claims.imported.graph), names_(claims.imported.node_names) {
    claimed_.assign(graph_.order().size(), false);
    for (const Partition& partition : claims.partitioning.partitions) {
      for (const int source : partition.sources) claimed_[source] = true;
    }
  }

  CutCost count() {
    for (const ir::NodeId id : graph_.order()) {
      const ir::Node& node = graph_.node(id);
      for (const ir::ValueId output : node.outputs) {
        if (output != ir::kNoValue) count(node, output);
      }
    }
    cost_.microseconds += kMicrosecondsPerCopy * static_cast<double>(cost_.to_cpu + cost_.to_gpu);
    return std::move(cost_);
  }

 private:
  bool is_claimed(const ir::Node& node) const { return claimed_[node.sources.front()]; }

  // Results of the whole graph are copied in any case.
  void count(const ir::Node& producer, ir::ValueId id) {
    const auto& results = graph_.outputs();
    if (is_claimed(producer) && std::ranges::count(results, id) > 0) return;
    bool crosses = false;
    for (const ir::NodeId reader : graph_.consumers(id)) {
      const ir::Node& node = graph_.node(reader);
      if (is_claimed(node) == is_claimed(producer)) continue;
      crosses = true;
      name(is_claimed(node) ? producer : node);
    }
    if (!crosses) return;
    ++(is_claimed(producer) ? cost_.to_cpu : cost_.to_gpu);
    add_bytes(graph_.value(id));
  }

  void add_bytes(const ir::Value& value) {
    const Dim elements = value.shape ? element_count(*value.shape) : Dim::symbol("?");
    if (elements.is_constant()) {
      const auto bytes = static_cast<uint64_t>(storage_bytes(value.dtype, elements.value()));
      cost_.bytes += bytes;
      cost_.microseconds += static_cast<double>(bytes) / kBytesPerMicrosecond;
      return;
    }
    std::string form =
        std::string(tenon::name(value.dtype)) + (value.shape ? text(*value.shape) : "");
    if (std::ranges::count(cost_.open_sizes, form) == 0)
      cost_.open_sizes.push_back(std::move(form));
  }

  void name(const ir::Node& left) {
    std::string said = fmt::format("{} '{}'", left.op, names_[left.sources.front()]);
    if (std::ranges::count(cost_.nodes, said) == 0) cost_.nodes.push_back(std::move(said));
  }

  const ir::Graph& graph_;
  const std::vector<std::string>& names_;
  std::vector<bool> claimed_;  // by source
  CutCost cost_;
};

std::string first_of(const std::vector<std::string>& words, size_t most) {
  const size_t shown = std::min(words.size(), most);
  std::string text = fmt::format(
      "{}", fmt::join(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (words.size() > shown) text += fmt::format(" and {} more", words.size() - shown);
  return text;
}

}  // namespace

std::string CutCost::text() const {
  std::string open;
  if (!open_sizes.empty()) open = fmt::format(" and what {} take", first_of(open_sizes, 3));
  return fmt::format(
      "{} run{} on the CPU in the middle of the graph: each Run copies {} tensor{} to the CPU and "
      "{} "
      "back ({:.1f} KiB{}) and waits for {}, about {:.0f} us beside the time that {} there",
      first_of(nodes, 3), nodes.size() == 1 ? "s" : "", to_cpu, to_cpu == 1 ? "" : "s", to_gpu,
      static_cast<double>(bytes) / 1024, open, to_cpu + to_gpu == 1 ? "it" : "each", microseconds,
      nodes.size() == 1 ? "it takes" : "they take");
}

std::optional<CutCost> cut_cost(const Claims& claims) {
  CutCost cost = Crossings(claims).count();
  if (cost.to_cpu + cost.to_gpu == 0) return std::nullopt;
  return cost;
}

}  // namespace tenon::provider
