#include "kernels/running/executable.h"

#include <cstring>
#include <functional>

#include "base/guard_pages.h"
#include "base/parallel_region.h"
#include "codegen/interpret.h"
#include "kernels/running/caller_overlaps.h"
#include "kernels/running/instances.h"
#include "kernels/running/program.h"
#include "kernels/running/state_pool.h"

namespace tenon::kernels {
namespace {

// Of an input that the launches may overwrite while they read it.
struct InputCopy {
  std::shared_ptr<std::byte[]> memory;
  size_t bytes = 0;
};

struct RunState {
  RunShapes shapes;
  std::shared_ptr<std::byte[]> arena;
  int64_t arena_bytes = 0;
  std::vector<std::shared_ptr<std::byte[]>> guarded;  // instead, per slot, where pages are guarded
  std::shared_ptr<std::byte[]> counters;              // zero between Runs
  int64_t counter_bytes = 0;
  std::vector<uintptr_t> callers;  // inputs and outputs, in the order of slots
  bool is_bound = false;           // slots and pointers are for these callers
  CallerOverlaps::Found overlaps;
  std::vector<InputCopy> copies;  // per caller, where a Run needed one
  std::vector<void*> slots;       // per slot
  std::vector<void*> pointers;    // buffers of all launches, one launch after the other
};

// The arguments of one launch. A lambda that captures one pointer fits into std::function.
struct Call {
  const CompiledLaunch& launch;
  const ShapeInstance::LaunchSize& size;
  void* const* buffers;
  const int64_t* indices;

  void run_tasks(int64_t first, int64_t last) const {
    if (launch.function != nullptr) return launch.function(buffers, indices, first, last);
    codegen::interpret(*launch.interpreted, {buffers, launch.slots.size()},
                       {indices, launch.indices.size()}, first, last);
  }

  // What is no kernel.
  void run_whole() const {
    if (launch.kind != LaunchKind::kCopy) {
      return launch.call->enqueue(nullptr, {buffers, launch.slots.size()},
                                  {indices, launch.indices.size()});
    }
    if (buffers[0] == buffers[1]) return;
    std::memcpy(buffers[1], buffers[0], static_cast<size_t>(size.copy_bytes));
  }
};

class CompiledExecutable final : public Executable {
 public:
  CompiledExecutable(Program program, int threads)
      : program_(std::move(program)),
        instances_(program_, threads),
        threads_(threads),
        overlaps_(program_) {
    for (const CompiledLaunch& launch : program_.launches) {
      for (size_t slot : launch.slots) {
        if (is_callers(slot)) patches_.push_back({pointer_count_, slot});
        ++pointer_count_;
      }
    }
    prepare_known_shape();
  }

  void run(RunContext& context) override {
    auto lease = states_.lease([&] { return new_state(); });
    RunState& state = *lease;
    const auto read_elements = [this](size_t input, const void* from, std::span<int64_t> to) {
      load_elements(program_.inputs[input].dtype, from, to);
    };
    if (instances_.read(context, state.shapes, read_elements)) adopt(state);
    if (take_addresses(context, state)) bind(state);
    copy_overlapped(state);
    write_shape_values(state);
    if (state.shapes.instance->is_parallel) {
      launch_in_region(context, state);
    } else {
      launch_all(context, state, nullptr);
    }
  }

  const std::vector<FusionReport>& fusions() const override { return program_.fusions; }
  const std::vector<BuildPhase>& phases() const override { return program_.phases; }
  const std::vector<KernelReport>& kernels() const override { return program_.kernels; }
  size_t weight_bytes() const override { return program_.weight_bytes; }
  size_t packed_bytes() const override { return program_.packed_bytes; }

 private:
  bool is_callers(size_t slot) const { return program_.slots[slot].is_callers(); }

  // Where no size is open the first Run finds its arena.
  void prepare_known_shape() {
    const auto instance = instances_.only();
    if (instance == nullptr) return;
    auto lease = states_.lease([&] { return new_state(); });
    (*lease).shapes.instance = instance;
    adopt(*lease);
  }

  std::unique_ptr<RunState> new_state() {
    auto state = std::make_unique<RunState>();
    state->shapes = instances_.make_shapes();
    state->slots.resize(program_.slots.size());
    state->pointers.resize(pointer_count_);
    state->callers.resize(overlaps_.size());
    state->copies.resize(overlaps_.size());
    state->overlaps = overlaps_.make_found();
    return state;
  }

  // Makes `state` fit its shapes: the arena and every pointer that does not change from Run to
  // Run.
  void adopt(RunState& state) {
    // Put back at the end: a state without one is made to fit again.
    auto instance = std::move(state.shapes.instance);
    state.is_bound = false;
    if (guards_pages()) {
      state.guarded.assign(program_.slots.size(), nullptr);
    } else if (instance->arena_bytes > state.arena_bytes) {
      state.arena.reset();
      state.arena_bytes = 0;
      state.arena = aligned_bytes(static_cast<size_t>(instance->arena_bytes));
      state.arena_bytes = instance->arena_bytes;
    }
    if (instance->counter_bytes > state.counter_bytes) {
      state.counters = aligned_bytes(static_cast<size_t>(instance->counter_bytes));
      std::memset(state.counters.get(), 0, static_cast<size_t>(instance->counter_bytes));
      state.counter_bytes = instance->counter_bytes;
    }
    for (size_t slot = 0; slot < state.slots.size(); ++slot) {
      const int64_t offset = instance->offsets[slot];
      const Slot::Kind kind = program_.slots[slot].kind;
      if (kind == Slot::Kind::kArena && guards_pages()) {
        state.guarded[slot] = guarded_bytes(static_cast<size_t>(instance->sizes[slot]), 1);
        state.slots[slot] = state.guarded[slot].get();
      } else if (kind == Slot::Kind::kArena) {
        state.slots[slot] = state.arena == nullptr ? nullptr : state.arena.get() + offset;
      } else if (kind == Slot::Kind::kCounters) {
        state.slots[slot] = state.counters == nullptr ? nullptr : state.counters.get() + offset;
      } else if (kind == Slot::Kind::kConstant) {
        state.slots[slot] = const_cast<void*>(program_.slots[slot].data.get());
      }
    }
    size_t position = 0;
    for (const CompiledLaunch& launch : program_.launches) {
      for (size_t slot : launch.slots) state.pointers[position++] = state.slots[slot];
    }
    state.shapes.instance = std::move(instance);
  }

  // Whether something of the caller's is elsewhere than what `state` is bound to.
  bool take_addresses(RunContext& context, RunState& state) const {
    const ShapeInstance& instance = *state.shapes.instance;
    for (size_t i = 0; i < state.callers.size(); ++i) {
      const Slot& slot = program_.slots[overlaps_.slot(i)];
      const void* data = slot.kind == Slot::Kind::kInput
                             ? state.shapes.inputs[slot.index].data
                             : context.output(slot.index, instance.outputs[slot.index]);
      const auto address = reinterpret_cast<uintptr_t>(data);
      if (state.callers[i] == address) continue;
      state.callers[i] = address;
      state.is_bound = false;
    }
    return !state.is_bound;
  }

  // Throws UserError where buffers may not be where they are.
  void bind(RunState& state) const {
    overlaps_.find(*state.shapes.instance, state.callers, state.overlaps);
    for (size_t i = 0; i < state.callers.size(); ++i) {
      state.slots[overlaps_.slot(i)] = reinterpret_cast<void*>(state.callers[i]);
    }
    for (const size_t caller : state.overlaps.copied) {
      const size_t slot = overlaps_.slot(caller);
      InputCopy& copy = state.copies[caller];
      const auto bytes = static_cast<size_t>(state.shapes.instance->sizes[slot]);
      if (bytes > copy.bytes) {
        copy = {};
        copy.memory = guards_pages() ? guarded_bytes(bytes, 1) : aligned_bytes(bytes);
        copy.bytes = bytes;
      }
      state.slots[slot] = copy.memory.get();
    }
    for (const Patch& patch : patches_) state.pointers[patch.position] = state.slots[patch.slot];
    state.is_bound = true;
  }

  void copy_overlapped(RunState& state) const {
    for (const size_t caller : state.overlaps.copied) {
      const size_t slot = overlaps_.slot(caller);
      std::memcpy(state.slots[slot], reinterpret_cast<const void*>(state.callers[caller]),
                  static_cast<size_t>(state.shapes.instance->sizes[slot]));
    }
  }

  void write_shape_values(RunState& state) const {
    for (size_t i = 0; i < program_.shape_writes.size(); ++i) {
      const ShapeWrite& write = program_.shape_writes[i];
      store_extents(write.dtype, state.shapes.instance->shape_writes[i], state.slots[write.slot]);
    }
  }

  void launch_in_region(RunContext& context, RunState& state) const {
    ParallelRegion region;
    const auto start_threads = [&](const std::function<void()>& join) {
      context.parallel_for(threads_, threads_, [&join](int64_t first, int64_t last) {
        for (; first < last; ++first) join();
      });
    };
    const auto drive = [&] { launch_all(context, state, &region); };
    region.run(start_threads, std::cref(drive));  // cref: a warm Run allocates nothing
  }

  // `region`: the threads that share launches of several pieces; null: the caller runs all.
  void launch_all(RunContext& context, RunState& state, ParallelRegion* region) const {
    void* const* buffers = state.pointers.data();
    LaunchObserver* const observer = context.observer();
    LaunchObserver::Time start;
    for (size_t i = 0; i < program_.launches.size(); ++i) {
      const CompiledLaunch& launch = program_.launches[i];
      if (observer != nullptr) start = std::chrono::steady_clock::now();
      const ShapeInstance::LaunchSize& size = state.shapes.instance->launches[i];
      for (const ShapeInstance::Check& check : size.checks) {
        check_indices(state.slots[check.slot], check, launch.checks[check.which].check.node);
      }
      const bool wanted = size.tasks > 0 && !is_left_out(launch, size, state);
      const int64_t* indices = state.shapes.instance->indices.data() + size.first_index;
      if (wanted) launch_one({launch, size, buffers, indices}, region);
      buffers += launch.slots.size();
      if (observer == nullptr) continue;
      observer->launched(launch.node, start, std::chrono::steady_clock::now());
    }
  }

  static void launch_one(const Call& call, ParallelRegion* region) {
    if (call.launch.kind != LaunchKind::kKernel) return call.run_whole();
    if (region == nullptr || call.size.pieces <= 1) return call.run_tasks(0, call.size.tasks);
    region->run_pieces(call.size.tasks, call.size.pieces,
                       [&call](int64_t first, int64_t last) { call.run_tasks(first, last); });
  }

  static bool is_left_out(const CompiledLaunch& launch, const ShapeInstance::LaunchSize& size,
                          const RunState& state) {
    const auto address = [&](size_t slot) {
      return reinterpret_cast<uintptr_t>(state.slots[slot]);
    };
    const auto& shared = launch.elidable_copy;
    return shared && is_brought(launch, size, address(shared->from), address(shared->to));
  }

  struct Patch {
    size_t position, slot;
  };

  Program program_;
  Instances instances_;
  const int threads_;
  StatePool<RunState> states_;
  const CallerOverlaps overlaps_;
  size_t pointer_count_ = 0;
  std::vector<Patch> patches_;  // where pointers of inputs and outputs go
};

}  // namespace

std::unique_ptr<Executable> run_on_host(Program program, int threads) {
  return std::make_unique<CompiledExecutable>(std::move(program), threads);
}

}  // namespace tenon::kernels
