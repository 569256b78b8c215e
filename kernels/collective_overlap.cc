#include "kernels/collective_overlap.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "graph_partitioner/ir/collectives.h"
#include "kernels/planning/collectives.h"
#include "kernels/planning/link_model.h"
#include "kernels/planning/overlap_schedule.h"
#include "kernels/planning/views.h"

namespace tenon::kernels {
namespace {

// Two events and two waits. What is hidden has to be more; an assumption, not measured.
constexpr double kForkAndJoin = 2;

bool reads_the_callers(const ir::Graph& graph, const ir::Node& node) {
  return std::ranges::any_of(
      node.inputs, [&](ir::ValueId id) { return id != ir::kNoValue && caller_brings(graph, id); });
}

// Outputs of the graph, and what they are views of.
std::set<ir::ValueId> given_to_the_caller(const ir::Graph& graph) {
  std::set<ir::ValueId> given(graph.outputs().begin(), graph.outputs().end());
  for (auto id = graph.order().rbegin(); id != graph.order().rend(); ++id) {
    const ir::Node& node = graph.node(*id);
    if (is_view(node) && given.contains(node.output(0))) given.insert(node.input(0));
  }
  return given;
}

double bytes_of(const ir::Value& value) {
  double elements = 1;
  const auto one = [](std::string_view) -> int64_t { return 1; };
  for (const Dim& dim : *value.shape) elements *= static_cast<double>(dim.evaluate(one));
  return elements * bit_width(value.dtype) / 8;
}

}  // namespace

CollectiveOverlap::CollectiveOverlap(const ir::Graph& graph, const Settings& settings)
    : graph_(graph), settings_(settings) {
  is_wanted_ = settings.collective_overlap && settings.gpu && !settings.emulate &&
               settings.collectives != nullptr && settings.collectives->ranks() > 1 &&
               std::ranges::any_of(
                   graph.order(), [&](ir::NodeId id) { return ir::is_collective(graph.node(id)); });
}

// Open sizes count as 1.
double CollectiveOverlap::microseconds(const ir::Node& collective) const {
  const int64_t told = ir::Collective::from(collective).ranks;
  const int ranks = told > 0 ? static_cast<int>(told) : settings_.collectives->ranks();
  const LinkModel link = nvlink_model(codegen::arch_spec(settings_.gpu->arch).compute_major);
  try {
    const double bytes = std::max(bytes_of(graph_.value(collective.input(0))),
                                  bytes_of(graph_.value(collective.output(0))));
    return link.microseconds(collective.op, ranks, bytes);
  } catch (const UserError&) {
    return link.base_us;  // sizes that no Run can have
  }
}

std::vector<size_t> CollectiveOverlap::order(std::span<const ir::NodeId> nodes, size_t fixed,
                                             std::span<const double> microseconds) const {
  std::vector<size_t> places(nodes.size());
  std::iota(places.begin(), places.end(), size_t{0});
  if (!is_wanted_) return places;
  const std::set<ir::ValueId> given = given_to_the_caller(graph_);
  std::map<ir::ValueId, size_t> makers;
  std::vector<size_t> readers, writers;  // of the caller's memory
  std::vector<ScheduledNode> scheduled;
  for (size_t i = fixed; i < nodes.size(); ++i) {
    const ir::Node& node = graph_.node(nodes[i]);
    ScheduledNode& one = scheduled.emplace_back();
    one.is_collective = ir::is_collective(node);
    one.microseconds = one.is_collective ? this->microseconds(node) : microseconds[i];
    for (const ir::ValueId id : node.inputs) {
      if (const auto maker = makers.find(id); maker != makers.end()) {
        one.after.push_back(maker->second);
      }
    }
    // The caller may have bound what comes in and what goes out to the same memory.
    if (std::ranges::any_of(node.outputs, [&](ir::ValueId id) { return given.contains(id); })) {
      std::ranges::copy(readers, std::back_inserter(one.after));
      writers.push_back(i - fixed);
    }
    if (reads_the_callers(graph_, node)) {
      std::ranges::copy(writers, std::back_inserter(one.after));
      readers.push_back(i - fixed);
    }
    std::erase(one.after, i - fixed);
    for (const ir::ValueId id : node.outputs) makers[id] = i - fixed;
  }
  const std::vector<size_t> found = schedule(scheduled, {});
  for (size_t i = 0; i < found.size(); ++i) places[fixed + i] = fixed + found[i];
  return places;
}

void CollectiveOverlap::note_launches(const ir::Node& node, const Program& program) {
  if (!is_wanted_ || program.launches.size() <= launches_.size()) return;
  const FusionReport& report = program.fusions.back();
  const double cost = ir::is_collective(node) ? microseconds(node) : report.microseconds;
  const Noted noted{program.fusions.size() - 1, cost};
  launches_.push_back(noted);
  launches_.resize(program.launches.size(), {noted.report, 0});
}

bool CollectiveOverlap::is_gain(size_t launch, size_t joined) const {
  double beside = 0;
  for (size_t i = launch + 1; i < std::min(joined, launches_.size()); ++i) {
    beside += launches_[i].microseconds;
  }
  return std::min(beside, launches_[launch].microseconds) > kForkAndJoin;
}

void CollectiveOverlap::tell(Program& program, size_t launch) const {
  const size_t joined = program.dependencies.launches()[launch].joined;
  std::string names;
  for (size_t i = launch + 1; i < joined; ++i) {
    if (i > launch + 1 && program.launches[i].node == program.launches[i - 1].node) continue;
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", program.launches[i].node);
  }
  std::string& note = program.fusions[launches_[launch].report].note;
  note += fmt::format("{}beside {}", note.empty() ? "" : "; ", names);
}

void CollectiveOverlap::put_aside(Program& program) const {
  if (!is_wanted_) return;
  program.dependencies.put_collectives_aside(
      program.slots, [&](size_t launch, size_t joined) { return is_gain(launch, joined); });
  for (size_t i = 0; i < launches_.size(); ++i) {
    if (program.dependencies.launches()[i].joined > 0) tell(program, i);
  }
}

}  // namespace tenon::kernels
