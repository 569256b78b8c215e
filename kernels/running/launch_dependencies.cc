#include "kernels/running/launch_dependencies.h"

#include <algorithm>

#include <fmt/format.h>

#include "graph_partitioner/ir/collectives.h"
#include "kernels/running/program.h"

namespace tenon::kernels {
namespace {

using Wait = codegen::Pdl::Wait;
using Use = LaunchDependencies::Use;

// "read x, y (old rows), write z"
std::string list(std::span<const Slot> slots, const std::vector<Use>& uses, bool before_wait) {
  std::string text;
  for (const bool writes : {false, true}) {
    std::string names;
    for (const Use& use : uses) {
      if (use.before_wait != before_wait || !(writes ? use.writes : use.reads)) continue;
      const bool is_constant = slots[use.slot].kind == Slot::Kind::kConstant;
      names += fmt::format("{}{}{}{}", names.empty() ? "" : ", ", is_constant ? "constant " : "",
                           slots[use.slot].name, use.old_rows ? " (old rows)" : "");
    }
    if (names.empty()) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", writes ? "write" : "read", names);
  }
  return text.empty() ? "-" : text;
}

std::string wait_text(const LaunchDependencies::Launch& launch) {
  if (launch.wait == Wait::kNone) return "-";
  if (!launch.always_waits) return "perhaps never";
  return launch.wait == Wait::kFirst ? "first" : "late";
}

}  // namespace

bool LaunchDependencies::is_cache(size_t slot) const {
  return std::ranges::any_of(caches_, [&](const auto& cache) { return cache.first == slot; });
}

bool LaunchDependencies::is_readable_before_wait(size_t slot) const {
  const auto found = writers_.find(slot);
  if (found == writers_.end()) return false;
  return std::ranges::all_of(found->second, [&](size_t node) {
    return node + 1 < nodes_launch_dependents_.size() && !nodes_launch_dependents_[node];
  });
}

void LaunchDependencies::add(const codegen::Kernel& kernel, std::string node,
                             std::span<const size_t> slots, bool has_pdl) {
  const codegen::Pdl pdl = codegen::pdl_of(kernel);
  Launch launch{
      kernel.name, std::move(node), has_pdl ? pdl.wait : Wait::kNone, pdl.always_waits, {}};
  auto slot = slots.begin();
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    if (kernel.parameters[i].type.kind != codegen::Type::Kind::kBuffer) continue;
    const codegen::BufferTouch& touch = pdl.parameters[i];
    const size_t used = *slot++;
    if (!touch.read && !touch.written) continue;
    if (touch.written) writers_[used].insert(nodes_launch_dependents_.size() - 1);
    const bool before_wait = has_pdl && touch.before_wait;
    launch.uses.push_back({used, touch.read, touch.written, before_wait,
                           before_wait && touch.fetched && !touch.written && is_cache(used)});
  }
  nodes_launch_dependents_.back() = nodes_launch_dependents_.back() || pdl.is_used();
  launches_.push_back(std::move(launch));
}

void LaunchDependencies::add_call(std::string name, std::string node, std::span<const size_t> slots,
                                  const std::vector<bool>& writes, bool reads_written,
                                  bool launches_dependents) {
  Launch launch{
      std::move(name), std::move(node), launches_dependents ? Wait::kFirst : Wait::kNone, true, {}};
  for (size_t i = 0; i < slots.size(); ++i) {
    if (writes[i]) writers_[slots[i]].insert(nodes_launch_dependents_.size() - 1);
    launch.uses.push_back({slots[i], !writes[i] || reads_written, writes[i], false, false});
  }
  if (launches_dependents) nodes_launch_dependents_.back() = true;
  launches_.push_back(std::move(launch));
}

void LaunchDependencies::mark_collective(std::span<const int64_t> groups) {
  launches_.back().is_collective = true;
  launches_.back().groups.assign(groups.begin(), groups.end());
}

// Whether one writes what the other touches.
bool LaunchDependencies::conflict(size_t launch, size_t other,
                                  const std::function<bool(size_t, size_t)>& share_memory) const {
  for (const Use& use : launches_[launch].uses) {
    for (const Use& touched : launches_[other].uses) {
      if ((use.writes || touched.writes) && share_memory(use.slot, touched.slot)) return true;
    }
  }
  return false;
}

// Behind the collective, of those whose own place is known: who needs what it gives or overwrites
// what it reads, or another collective in order that it may not run beside.
size_t LaunchDependencies::first_to_wait(size_t collective) const {
  const auto is_same = [&](size_t a, size_t b) { return a == b || is_cache_pair(a, b); };
  for (size_t i = collective + 1; i < launches_.size(); ++i) {
    const Launch& launch = launches_[i];
    const bool in_order = launch.is_collective && launch.joined == 0;
    if (in_order && ir::share_two_ranks(launches_[collective].groups, launch.groups)) return i;
    if (conflict(collective, i, is_same)) return i;
  }
  return launches_.size();
}

void LaunchDependencies::put_collectives_aside(std::span<Slot> slots,
                                               const std::function<bool(size_t, size_t)>& is_gain) {
  for (size_t i = launches_.size(); i-- > 0;) {
    Launch& launch = launches_[i];
    if (!launch.is_collective) continue;
    const size_t joined = first_to_wait(i);
    if (joined == i + 1 || !is_gain(i, joined)) continue;
    launch.joined = joined;
    launch.wait = Wait::kNone;  // what is behind it on the Run's stream does not follow it there
    for (const Use& use : launch.uses) {
      Slot& slot = slots[use.slot];
      slot.last = std::max(slot.last, static_cast<int>(joined) - 1);
    }
  }
}

void LaunchDependencies::add_watched(size_t slot) {
  std::vector<Use>& uses = launches_.back().uses;
  const auto is_it = [&](const Use& use) {
    return use.slot == slot && use.reads && !use.before_wait;
  };
  if (std::ranges::none_of(uses, is_it)) uses.push_back({slot, true, false, false, false});
}

size_t LaunchDependencies::first_beside(size_t launch) const {
  if (!launches_dependents(launch)) return launch;
  size_t first = launch;
  while (first > 0 && launches_dependents(first - 1)) --first;
  return first;
}

// It writes behind its wait. Whoever ended behind `before` had waited for it, or has not at all.
bool LaunchDependencies::has_ended(size_t before, size_t launch) const {
  if (launches_[before].joined > launch) return false;  // a collective aside
  if (!launches_dependents(launch)) return true;
  return std::all_of(launches_.begin() + static_cast<std::ptrdiff_t>(before) + 1,
                     launches_.begin() + static_cast<std::ptrdiff_t>(launch),
                     [](const Launch& between) { return between.always_waits; });
}

// Slots of the arena that are not alive together may have the same place in it.
bool LaunchDependencies::share_memory(std::span<const Slot> slots, size_t a, size_t b) const {
  if (a == b) return true;
  const Slot &one = slots[a], &other = slots[b];
  if (one.kind == Slot::Kind::kArena && other.kind == Slot::Kind::kArena) {
    return one.last < other.first || other.last < one.first;
  }
  return is_cache_pair(a, b);
}

bool LaunchDependencies::is_cache_pair(size_t a, size_t b) const {
  return std::ranges::any_of(caches_, [&](const auto& cache) {
    return cache == std::pair(a, b) || cache == std::pair(b, a);
  });
}

// Writes the slot and launches no dependents: who uses it behind this one finds everything before
// this one ended, for without it nobody uses the slot.
bool LaunchDependencies::ends_all_before(size_t launch, size_t slot) const {
  if (launches_dependents(launch)) return false;
  return std::ranges::any_of(launches_[launch].uses,
                             [&](const Use& use) { return use.slot == slot && use.writes; });
}

Support LaunchDependencies::verify(std::span<const Slot> slots, size_t launch,
                                   const Use& use) const {
  bool is_chained = true;  // whoever ended behind `before` had waited for it
  for (size_t before = launch; before-- > 0;) {
    const bool has_ended = use.before_wait ? !launches_dependents(before) : is_chained;
    is_chained = is_chained && launches_[before].always_waits;
    if (use.before_wait && ends_all_before(before, use.slot)) break;
    if (has_ended) continue;
    for (const Use& other : launches_[before].uses) {
      if (!use.writes && !other.writes) continue;
      if (!share_memory(slots, use.slot, other.slot)) continue;
      if (use.old_rows && use.slot != other.slot) continue;  // new rows are written beside them
      return {false, fmt::format("launch {} ({}, node '{}') {} {} {} launch {} ({}), which {} {}, "
                                 "need have ended",
                                 launch, launches_[launch].kernel, launches_[launch].node,
                                 use.writes ? "writes" : "reads", slots[use.slot].name,
                                 use.before_wait ? "before it waits, and before" : "before", before,
                                 launches_[before].kernel, other.writes ? "writes" : "reads",
                                 slots[other.slot].name)};
    }
  }
  return {};
}

Support LaunchDependencies::verify_aside(std::span<const Slot> slots, size_t launch) const {
  const Launch& aside = launches_[launch];
  if (!aside.is_collective || aside.joined <= launch || aside.joined > launches_.size()) {
    return {false,
            fmt::format("launch {} ({}) is joined at {}", launch, aside.kernel, aside.joined)};
  }
  const auto share = [&](size_t a, size_t b) { return share_memory(slots, a, b); };
  for (size_t i = launch + 1; i < aside.joined; ++i) {
    const Launch& beside = launches_[i];
    if (beside.is_collective && beside.joined == 0 &&
        ir::share_two_ranks(aside.groups, beside.groups)) {
      return {false, fmt::format("launch {} ({}, node '{}') begins while launch {} ({}) runs "
                                 "aside, and two ranks are in both: they could wait for each other",
                                 i, beside.kernel, beside.node, launch, aside.kernel)};
    }
    if (!conflict(launch, i, share)) continue;
    return {false, fmt::format("launch {} ({}, node '{}') touches memory of launch {} ({}), which "
                               "runs aside until launch {}",
                               i, beside.kernel, beside.node, launch, aside.kernel, aside.joined)};
  }
  return {};
}

Support LaunchDependencies::verify(std::span<const Slot> slots) const {
  for (size_t launch = 0; launch < launches_.size(); ++launch) {
    if (launches_[launch].joined > 0) {
      if (const Support safe = verify_aside(slots, launch); !safe) return safe;
    }
    if (!launches_dependents(launch)) continue;  // all others have ended when it begins
    for (const Use& use : launches_[launch].uses) {
      if (slots[use.slot].kind == Slot::Kind::kConstant && !use.writes) continue;
      if (const Support safe = verify(slots, launch, use); !safe) return safe;
    }
  }
  return {};
}

std::string LaunchDependencies::text(std::span<const Slot> slots) const {
  std::string table =
      "launch | kernel | node | begins, if none is left out | waits | before the wait | after it\n";
  for (size_t i = 0; i < launches_.size(); ++i) {
    const Launch& launch = launches_[i];
    const size_t first = first_beside(i);
    const std::string begins = launch.joined > 0
                                   ? fmt::format("after all, aside until {}", launch.joined)
                               : first == i     ? "after all"
                               : first == i - 1 ? fmt::format("beside {}", first)
                                                : fmt::format("beside {}-{}", first, i - 1);
    table += fmt::format("{} | {} | {} | {} | {} | {} | {}\n", i, launch.kernel, launch.node,
                         begins, wait_text(launch), list(slots, launch.uses, true),
                         list(slots, launch.uses, false));
  }
  return table;
}

}  // namespace tenon::kernels
