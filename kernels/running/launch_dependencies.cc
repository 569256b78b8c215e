#include "kernels/running/launch_dependencies.h"

#include <algorithm>

#include <fmt/format.h>

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
                             std::span<const size_t> slots, const codegen::GpuTarget& target) {
  const codegen::Pdl pdl = codegen::pdl_of(kernel);
  const bool has_pdl = codegen::has_pdl(target);
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
                                  const std::vector<bool>& writes, bool reads_written) {
  Launch launch{std::move(name), std::move(node), Wait::kNone, true, {}};
  for (size_t i = 0; i < slots.size(); ++i) {
    if (writes[i]) writers_[slots[i]].insert(nodes_launch_dependents_.size() - 1);
    launch.uses.push_back({slots[i], !writes[i] || reads_written, writes[i], false, false});
  }
  launches_.push_back(std::move(launch));
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

// Slots of the arena that are not alive together may have the same place in it.
bool LaunchDependencies::share_memory(std::span<const Slot> slots, size_t a, size_t b) const {
  if (a == b) return true;
  const Slot &one = slots[a], &other = slots[b];
  if (one.kind == Slot::Kind::kArena && other.kind == Slot::Kind::kArena) {
    return one.last < other.first || other.last < one.first;
  }
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

Support LaunchDependencies::verify(std::span<const Slot> slots) const {
  for (size_t launch = 0; launch < launches_.size(); ++launch) {
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
    const std::string begins = first == i       ? "after all"
                               : first == i - 1 ? fmt::format("beside {}", first)
                                                : fmt::format("beside {}-{}", first, i - 1);
    table += fmt::format("{} | {} | {} | {} | {} | {} | {}\n", i, launch.kernel, launch.node,
                         begins, wait_text(launch), list(slots, launch.uses, true),
                         list(slots, launch.uses, false));
  }
  return table;
}

}  // namespace tenon::kernels
