#include "kernels/executable.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "base/convert.h"
#include "base/error.h"
#include "kernels/program.h"
#include "kernels/shape_instance.h"

namespace tenon::kernels {
namespace {

// What one Run needs for itself. Kept between Runs, so that a warm one allocates nothing.
struct RunState {
  std::vector<RunContext::Input> inputs;
  std::vector<int64_t> symbols;
  std::shared_ptr<const ShapeInstance> instance;  // that `pointers` were made for
  std::shared_ptr<std::byte[]> arena;
  int64_t arena_bytes = 0;
  std::vector<void*> slots;     // per slot
  std::vector<void*> pointers;  // buffers of all launches, one launch after the other
};

// The arguments of one launch. A lambda that captures one pointer fits into std::function.
struct Call {
  codegen::HostFunction function;
  void* const* buffers;
  const int64_t* indices;
};

class CompiledExecutable final : public Executable {
 public:
  CompiledExecutable(Program program, int threads)
      : program_(std::move(program)), threads_(threads) {
    for (size_t slot = 0; slot < program_.slots.size(); ++slot) {
      if (is_callers(slot)) caller_slots_.push_back(slot);
    }
    for (const CompiledLaunch& launch : program_.launches) {
      for (size_t slot : launch.slots) {
        if (is_callers(slot)) patches_.push_back({pointer_count_, slot});
        ++pointer_count_;
      }
    }
  }

  void run(RunContext& context) override {
    Lease state(*this);
    read_inputs(context, *state);
    prepare(*state);
    bind(context, *state);
    write_shape_values(*state);
    launch_all(context, *state);
    copy_outputs(*state);
  }

  const std::vector<FusionReport>& fusions() const override { return program_.fusions; }
  size_t weight_bytes() const override { return program_.weight_bytes; }
  size_t packed_bytes() const override { return program_.packed_bytes; }

 private:
  // One state per concurrent Run, back in the pool afterwards, also when the Run throws.
  class Lease {
   public:
    explicit Lease(CompiledExecutable& owner) : owner_(owner) {
      {
        const std::lock_guard lock(owner_.pool_mutex_);
        if (!owner_.pool_.empty()) {
          state_ = std::move(owner_.pool_.back());
          owner_.pool_.pop_back();
        }
      }
      if (state_ == nullptr) state_ = owner_.new_state();
    }
    ~Lease() {
      const std::lock_guard lock(owner_.pool_mutex_);
      owner_.pool_.push_back(std::move(state_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    RunState& operator*() { return *state_; }

   private:
    CompiledExecutable& owner_;
    std::unique_ptr<RunState> state_;
  };

  bool is_callers(size_t slot) const {
    const Slot::Kind kind = program_.slots[slot].kind;
    return kind == Slot::Kind::kInput || kind == Slot::Kind::kOutput;
  }

  std::unique_ptr<RunState> new_state() {
    auto state = std::make_unique<RunState>();
    state->inputs.resize(program_.inputs.size());
    state->symbols.resize(program_.binding.symbols().size());
    state->slots.resize(program_.slots.size());
    state->pointers.resize(pointer_count_);
    const std::lock_guard lock(pool_mutex_);
    pool_.reserve(++states_);  // so that giving it back cannot fail
    return state;
  }

  void read_inputs(RunContext& context, RunState& state) const {
    for (size_t i = 0; i < state.inputs.size(); ++i) {
      state.inputs[i] = context.input(i);
      const InputShape& expected = program_.inputs[i];
      if (expected.shape && expected.shape->size() != state.inputs[i].dims.size()) {
        refuse(i, state.inputs[i].dims);
      }
    }
    const auto& sources = program_.binding.sources();
    for (size_t i = 0; i < sources.size(); ++i) {
      const SymbolBinding::Source& source = sources[i];
      const int64_t extent = state.inputs[source.input].dims[source.axis];
      state.symbols[i] = (extent - source.summand) / source.factor;
    }
  }

  void prepare(RunState& state) {
    if (state.instance == nullptr || state.instance->symbols != state.symbols) adopt(state);
    for (size_t i = 0; i < state.inputs.size(); ++i) {
      if (!program_.inputs[i].shape) continue;
      const std::span<const int64_t> dims = state.inputs[i].dims;
      if (!std::equal(dims.begin(), dims.end(), state.instance->inputs[i].begin())) refuse(i, dims);
    }
  }

  [[noreturn]] void refuse(size_t input, std::span<const int64_t> dims) const {
    const InputShape& expected = program_.inputs[input];
    throw UserError(fmt::format("input '{}' has shape [{}], but the model expects {}",
                                expected.name, fmt::join(dims, ","), text(*expected.shape)));
  }

  // Makes `state` fit its symbols: the arena and every pointer that does not change from Run to
  // Run.
  void adopt(RunState& state) {
    state.instance.reset();
    auto instance = find_instance(state.symbols);
    if (instance->arena_bytes > state.arena_bytes) {
      state.arena.reset();
      state.arena_bytes = 0;
      state.arena = aligned_bytes(static_cast<size_t>(instance->arena_bytes));
      state.arena_bytes = instance->arena_bytes;
    }
    for (size_t slot = 0; slot < state.slots.size(); ++slot) {
      const int64_t offset = instance->offsets[slot];
      if (offset >= 0) {
        state.slots[slot] = state.arena == nullptr ? nullptr : state.arena.get() + offset;
      } else if (program_.slots[slot].kind == Slot::Kind::kConstant) {
        state.slots[slot] = const_cast<void*>(program_.slots[slot].data.get());
      }
    }
    size_t position = 0;
    for (const CompiledLaunch& launch : program_.launches) {
      for (size_t slot : launch.slots) state.pointers[position++] = state.slots[slot];
    }
    state.instance = std::move(instance);
  }

  std::shared_ptr<const ShapeInstance> find_instance(const std::vector<int64_t>& symbols) {
    const auto same = [&](const auto& instance) { return instance->symbols == symbols; };
    {
      const std::lock_guard lock(instances_mutex_);
      const auto found = std::find_if(instances_.begin(), instances_.end(), same);
      if (found != instances_.end()) {
        std::rotate(instances_.begin(), found, found + 1);  // most recent first
        return instances_.front();
      }
    }
    auto made = instantiate(program_, symbols, threads_);
    const std::lock_guard lock(instances_mutex_);
    const auto found = std::find_if(instances_.begin(), instances_.end(), same);
    if (found != instances_.end()) return *found;
    if (instances_.size() >= kInstances) instances_.pop_back();
    instances_.insert(instances_.begin(), made);
    return made;
  }

  void bind(RunContext& context, RunState& state) const {
    for (size_t slot : caller_slots_) {
      const Slot& described = program_.slots[slot];
      state.slots[slot] =
          described.kind == Slot::Kind::kInput
              ? const_cast<void*>(state.inputs[described.index].data)
              : context.output(described.index, state.instance->outputs[described.index]);
    }
    for (const Patch& patch : patches_) state.pointers[patch.position] = state.slots[patch.slot];
  }

  void write_shape_values(RunState& state) const {
    for (size_t i = 0; i < program_.shape_writes.size(); ++i) {
      const ShapeWrite& write = program_.shape_writes[i];
      const std::vector<int64_t>& elements = state.instance->shape_writes[i];
      for (size_t element = 0; element < elements.size(); ++element) {
        store_code(write.dtype, state.slots[write.slot], static_cast<int64_t>(element),
                   encode_extent(write.dtype, elements[element]));
      }
    }
  }

  static uint64_t encode_extent(DType dtype, int64_t value) {
    return is_integer(dtype) ? static_cast<uint64_t>(value)
                             : encode(dtype, static_cast<double>(value));
  }

  void launch_all(RunContext& context, RunState& state) const {
    void* const* buffers = state.pointers.data();
    for (size_t i = 0; i < program_.launches.size(); ++i) {
      const CompiledLaunch& launch = program_.launches[i];
      const ShapeInstance::LaunchSize& size = state.instance->launches[i];
      for (const ShapeInstance::Check& check : size.checks) {
        check_indices(state.slots[check.slot], check, launch.node);
      }
      const Call call{launch.function, buffers, state.instance->indices.data() + size.first_index};
      if (size.tasks > 0 && size.batches <= 1) {
        call.function(call.buffers, call.indices, 0, size.tasks);
      } else if (size.tasks > 0) {
        context.parallel_for(size.tasks, size.batches, [&call](int64_t first, int64_t last) {
          call.function(call.buffers, call.indices, first, last);
        });
      }
      buffers += launch.slots.size();
    }
  }

  static void copy_outputs(const RunState& state) {
    for (const ShapeInstance::Copy& copy : state.instance->copies) {
      if (copy.bytes == 0 || state.slots[copy.to] == state.slots[copy.from]) continue;
      std::memcpy(state.slots[copy.to], state.slots[copy.from], static_cast<size_t>(copy.bytes));
    }
  }

  struct Patch {
    size_t position, slot;
  };
  static constexpr size_t kInstances = 64;

  Program program_;
  int threads_;
  size_t pointer_count_ = 0;
  std::vector<size_t> caller_slots_;  // inputs and outputs
  std::vector<Patch> patches_;        // where their pointers go

  std::mutex pool_mutex_;
  std::vector<std::unique_ptr<RunState>> pool_;
  size_t states_ = 0;
  std::mutex instances_mutex_;
  std::vector<std::shared_ptr<const ShapeInstance>> instances_;
};

}  // namespace

std::unique_ptr<Executable> Executable::build(ir::Graph fused, const Settings& settings,
                                              const codegen::StageSink& sink) {
  return std::make_unique<CompiledExecutable>(make_program(fused, settings, sink),
                                              settings.host.threads);
}

}  // namespace tenon::kernels
