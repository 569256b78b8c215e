#include "kernels/running/caller_overlaps.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::kernels {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);

}  // namespace

CallerOverlaps::CallerOverlaps(const Program& program) : program_(program) {
  std::vector<size_t> caller_of(program.slots.size(), kNone);
  for (size_t slot = 0; slot < program.slots.size(); ++slot) {
    if (!program.slots[slot].is_callers()) continue;
    caller_of[slot] = callers_.size();
    callers_.push_back({slot, program.slots[slot].kind == Slot::Kind::kInput, false, {}});
  }
  const auto& launches = program.dependencies.launches();
  for (size_t i = 0; i < launches.size(); ++i) {
    for (const LaunchDependencies::Use& use : launches[i].uses) {
      if (const size_t caller = caller_of[use.slot]; caller != kNone) {
        callers_[caller].uses.push_back({i, use.reads, use.writes});
      }
    }
  }
  for (const ShapeWrite& write : program.shape_writes) {
    if (const size_t caller = caller_of[write.slot]; caller != kNone) {
      callers_[caller].written_first = true;
    }
  }
  add_updates();
}

// Launches of one node stand together.
void CallerOverlaps::add_updates() {
  const std::vector<CompiledLaunch>& launches = program_.launches;
  const auto caller_of = [&](size_t slot) {
    return static_cast<size_t>(std::ranges::find(callers_, slot, &Caller::slot) - callers_.begin());
  };
  for (size_t i = 0; i < launches.size(); ++i) {
    const auto& shared = launches[i].elidable_copy;
    if (!shared || !program_.slots[shared->from].is_callers() ||
        !program_.slots[shared->to].is_callers()) {
      continue;
    }
    Update update{caller_of(shared->from), caller_of(shared->to), i, i, i + 1};
    while (update.first > 0 && launches[update.first - 1].node == launches[i].node) --update.first;
    while (update.end < launches.size() && launches[update.end].node == launches[i].node) {
      ++update.end;
    }
    updates_.push_back(update);
  }
}

CallerOverlaps::Found CallerOverlaps::make_found() const {
  Found found;
  found.copied.reserve(callers_.size());
  found.by_address.resize(callers_.size());
  std::iota(found.by_address.begin(), found.by_address.end(), size_t{0});
  return found;
}

void CallerOverlaps::find(const ShapeInstance& instance, std::span<const uintptr_t> begins,
                          Found& found) const {
  found.copied.clear();
  std::vector<size_t>& order = found.by_address;
  const auto begin_of = [&](size_t caller) { return begins[caller]; };
  const auto end_of = [&](size_t caller) {
    return begins[caller] + static_cast<uintptr_t>(instance.sizes[callers_[caller].slot]);
  };
  if (!std::ranges::is_sorted(order, {}, begin_of)) std::ranges::sort(order, {}, begin_of);
  size_t cluster = 0;  // of those from here on, each overlaps what is in front of it
  uintptr_t end = 0;   // of all in front
  for (size_t i = 0; i < order.size(); ++i) {
    if (begin_of(order[i]) == end_of(order[i])) continue;
    if (begin_of(order[i]) >= end) cluster = i;
    for (size_t before = cluster; before < i; ++before) {
      if (begin_of(order[i]) < end_of(order[before])) {
        judge(instance, begins, order[before], order[i], found);
      }
    }
    end = std::max(end, end_of(order[i]));
  }
}

void CallerOverlaps::judge(const ShapeInstance& instance, std::span<const uintptr_t> begins,
                           size_t a, size_t b, Found& found) const {
  if (callers_[a].is_input && callers_[b].is_input) return;
  if (!callers_[a].is_input && !callers_[b].is_input) refuse_outputs(a, b);
  if (!callers_[a].is_input) std::swap(a, b);
  const Pair pair{a, b,
                  begins[a] == begins[b] &&
                      instance.sizes[callers_[a].slot] == instance.sizes[callers_[b].slot]};
  check_updates(instance, begins, pair);
  if (std::ranges::find(found.copied, a) != found.copied.end()) return;
  if (must_copy(instance, pair)) found.copied.push_back(a);
}

void CallerOverlaps::refuse_outputs(size_t a, size_t b) const {
  throw UserError(
      fmt::format("outputs '{}' and '{}' are bound to memory that overlaps, and each would be "
                  "written over by the other; bind each to memory of its own",
                  program_.slots[callers_[std::min(a, b)].slot].name,
                  program_.slots[callers_[std::max(a, b)].slot].name));
}

void CallerOverlaps::check_updates(const ShapeInstance& instance, std::span<const uintptr_t> begins,
                                   const Pair& pair) const {
  for (const Update& update : updates_) {
    if (update.from != pair.input || update.to != pair.output) continue;
    is_brought(program_.launches[update.copy], instance.launches[update.copy], begins[pair.input],
               begins[pair.output]);
  }
}

// A copy that may be left out counts as a write all the same: it is none where its input is copied
// for another reason.
bool CallerOverlaps::must_copy(const ShapeInstance& instance, const Pair& pair) const {
  const Caller &input = callers_[pair.input], &output = callers_[pair.output];
  const auto written = std::ranges::find_if(output.uses, [&](const Use& use) {
    return use.writes && !is_left_out(instance, pair, use.launch);
  });
  if (!output.written_first && written == output.uses.end()) return false;
  return std::ranges::any_of(input.uses, [&](const Use& use) {
    if (!use.reads || is_left_out(instance, pair, use.launch) || knows(pair, use.launch)) {
      return false;
    }
    const bool writes_first = !output.written_first && use.launch == written->launch;
    if (writes_first && is_in_place(pair, use.launch)) return false;
    return output.written_first || use.launch >= written->launch ||
           !program_.dependencies.has_ended(use.launch, written->launch);
  });
}

// It does nothing at these sizes, or copies a buffer to where it is.
bool CallerOverlaps::is_left_out(const ShapeInstance& instance, const Pair& pair,
                                 size_t launch) const {
  if (instance.launches[launch].tasks == 0) return true;
  const CompiledLaunch& described = program_.launches[launch];
  return pair.is_same && described.kind == LaunchKind::kCopy &&
         described.slots[0] == callers_[pair.input].slot &&
         described.slots[1] == callers_[pair.output].slot;
}

bool CallerOverlaps::is_in_place(const Pair& pair, size_t launch) const {
  const std::pair slots(callers_[pair.input].slot, callers_[pair.output].slot);
  return pair.is_same && std::ranges::count(program_.launches[launch].in_place, slots) > 0;
}

bool CallerOverlaps::knows(const Pair& pair, size_t launch) const {
  return pair.is_same && std::ranges::any_of(updates_, [&](const Update& update) {
           return update.from == pair.input && update.to == pair.output && launch >= update.first &&
                  launch < update.end;
         });
}

}  // namespace tenon::kernels
