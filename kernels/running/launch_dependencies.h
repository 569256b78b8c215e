// Which launch of a program may run before which has ended, and what each touches by then: the one
// place that decides it. On a GPU with programmatic dependent launch (PDL)
// - a launch that launches its dependents does so as soon as all of its CTAs run, before it waits
//   itself: so the next one may run beside it and beside all that it runs beside;
// - a launch behind one that launches no dependents is launched after everything before it;
// - griddepcontrol.wait waits for the end of the previous launch. That one waited before it ended,
// so
//   all launches before it have ended, too.
// Any launch may be left out of a Run, with what it would have written.
// A collective may run aside, on a stream of its own: it begins after all launches before it have
// ended, and the launch that it is joined at, which is launched after everything before it, begins
// after its end. All aside run one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/support.h"
#include "codegen/pdl.h"

namespace tenon::kernels {

struct Slot;

class LaunchDependencies {
 public:
  struct Use {
    size_t slot = 0;
    bool reads = false, writes = false;
    bool before_wait = false;  // perhaps before griddepcontrol.wait
    bool old_rows = false;     // fetched from a cache: what is new in it counts only after the wait
  };
  struct Launch {
    std::string kernel, node;
    codegen::Pdl::Wait wait{};
    bool always_waits = true;
    std::vector<Use> uses;
    bool is_collective = false;
    std::vector<int64_t> groups = {};  // of a collective, as of ir::Collective
    // Of a collective that runs aside, on a stream of its own: the launch before which it has
    // ended. 0: it runs in order with the others.
    size_t joined = 0;

    bool launches_dependents() const { return wait != codegen::Pdl::Wait::kNone; }
  };

  using Caches = std::vector<std::pair<size_t, size_t>>;

  LaunchDependencies() = default;
  // As others told them: nothing is added any more.
  LaunchDependencies(std::vector<Launch> launches, Caches caches)
      : launches_(std::move(launches)), caches_(std::move(caches)) {}

  // A cache of the caller's, who may bind what it becomes to the same memory.
  void add_cache(size_t past, size_t present) { caches_.emplace_back(past, present); }
  bool is_cache(size_t slot) const;

  // The launches that are added next are of another fused node.
  void begin_node() { nodes_launch_dependents_.push_back(false); }
  // Whether the node's launches may read the slot, which the caller did not bring, before they
  // wait: nodes before this one wrote it, and launched no dependents until it was there.
  bool is_readable_before_wait(size_t slot) const;
  // `slots`: one per buffer of the kernel, in order. Whether a node launches dependents, and what
  // others may then read before they wait, is the same for every GPU; launches overlap on those
  // with PDL. On the host one ends before the next begins.
  void add(const codegen::Kernel& kernel, std::string node, std::span<const size_t> slots,
           bool has_pdl);
  // A launch of another kind: touches nothing before all before it has ended. With dependents it
  // waits for that itself, else it is launched then.
  void add_call(std::string name, std::string node, std::span<const size_t> slots,
                const std::vector<bool>& writes, bool reads_written,
                bool launches_dependents = false);
  // The launch that was added last is one, of these groups.
  void mark_collective(std::span<const int64_t> groups);
  // Lets collectives run beside launches behind them that touch other memory, where
  // is_gain(launch, the one before which it has ended) says so. Their slots live as long.
  void put_collectives_aside(std::span<Slot> slots,
                             const std::function<bool(size_t launch, size_t joined)>& is_gain);
  // What is looked at before the launch that was added last, after a wait: indices.
  void add_watched(size_t slot);
  // Kernels are compiled once each, and have other names then.
  void rename(size_t launch, std::string kernel) { launches_[launch].kernel = std::move(kernel); }

  const Caches& caches() const { return caches_; }  // past, present
  const std::vector<Launch>& launches() const { return launches_; }
  std::vector<Launch>& launches() { return launches_; }  // for tests that break them
  bool launches_dependents(size_t launch) const { return launches_[launch].launches_dependents(); }
  // The first launch that may still run when this one begins; its own number where it begins after
  // all before it. Of a Run that leaves none out.
  size_t first_beside(size_t launch) const;
  // Whether a launch before this one has ended when this one writes what others may read, whichever
  // are left out.
  bool has_ended(size_t before, size_t launch) const;

  // No launch touches, before its wait, what one that may still run writes, nor writes what that
  // one touches; and none ends without having waited while another counts on that. Nor does a
  // launch beside a collective, and no two collectives run at a time whose groups share two ranks.
  Support verify(std::span<const Slot> slots) const;
  // A table, one line per launch.
  std::string text(std::span<const Slot> slots) const;

 private:
  bool share_memory(std::span<const Slot> slots, size_t a, size_t b) const;
  bool is_cache_pair(size_t a, size_t b) const;
  bool ends_all_before(size_t launch, size_t slot) const;
  Support verify(std::span<const Slot> slots, size_t launch, const Use& use) const;
  Support verify_aside(std::span<const Slot> slots, size_t launch) const;
  bool conflict(size_t launch, size_t other,
                const std::function<bool(size_t, size_t)>& share_memory) const;
  size_t first_to_wait(size_t collective) const;

  std::vector<Launch> launches_;
  Caches caches_;
  std::vector<bool> nodes_launch_dependents_;   // whether a launch of it does, per fused node
  std::map<size_t, std::set<size_t>> writers_;  // of a slot: fused nodes
};

}  // namespace tenon::kernels
