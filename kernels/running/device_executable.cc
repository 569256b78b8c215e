#include "kernels/running/device_executable.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/stopwatch.h"
#include "base/thread_pool.h"
#include "kernels/device/stream.h"
#include "kernels/running/argument_layout.h"
#include "kernels/running/caller_buffers.h"
#include "kernels/running/caller_overlaps.h"
#include "kernels/running/captured_runs.h"
#include "kernels/running/collective_memory.h"
#include "kernels/running/collective_order.h"
#include "kernels/running/collective_stream.h"
#include "kernels/running/copy_or_call.h"
#include "kernels/running/device_weights.h"
#include "kernels/running/index_watch.h"
#include "kernels/running/instances.h"
#include "kernels/running/program.h"
#include "kernels/running/shape_values.h"
#include "kernels/running/state_pool.h"
#include "kernels/running/tma_descriptors.h"
#include "kernels/running/written_sizes.h"

namespace tenon::kernels {
namespace {

using device::Address;
using device::Buffer;
using device::Device;
using device::Event;
using device::LoadedKernel;
using device::Stream;

// What one Run needs for itself. Its arena belongs to the stream of its last Run until that Run has
// ended.
struct DeviceRunState {
  DeviceRunState(const ArgumentLayout& layout, const CallerOverlaps& overlaps)
      : callers(layout, overlaps) {}

  RunShapes shapes;
  Buffer arena;
  Buffer counters;  // zero between Runs
  ShapeValues shape_values;
  std::vector<Address> slots;                   // per slot
  CallerBuffers callers;                        // what slots and arguments have of them
  std::vector<uint64_t> arguments;              // of all launches, one launch after the other
  std::vector<TmaDescriptors> tma_descriptors;  // per launch
  device::StreamHandle stream = nullptr;        // of the last Run
  std::shared_ptr<const void> stream_kept;      // where it would go before this state
  std::unique_ptr<Event> finished;              // its end, recorded when someone wants to know it
  bool in_flight = false, end_recorded = false;
  std::unique_ptr<Stream> own_stream;  // where the caller brings none
  std::unique_ptr<CollectiveStream> collectives;
  CapturedRuns captured;
  IndexFlags flags;
  std::vector<std::string> replaced;  // plans of libraries that failed, to be told of
};

class DeviceExecutable final : public Executable {
 public:
  DeviceExecutable(Program program, const codegen::GpuTarget& target,
                   std::shared_ptr<Device> device, DeviceRunOptions options)
      : program_(std::move(program)),
        device_(std::move(device)),
        options_(options),
        instances_(program_, 1),
        layout_(program_),
        overlaps_(program_) {
    for (const CompiledLaunch& launch : program_.launches) {
      if (launch.call != nullptr && !launch.call->can_be_captured()) uncapturable_ = &launch;
    }
    if (device_ == nullptr) {
      for (Slot& slot : program_.slots) {  // the graph that they read may go
        slot.pack = {};
        slot.on_device = {};
      }
      program_.check_weights = {};
      return;
    }
    // The driver compiles one kernel at a time, and packing keeps the other cores busy. Where no
    // thread is to be had kernels are loaded afterwards.
    auto loaded = std::async([&] { return load_kernels(); });
    const Stopwatch watch;
    const WeightPacking packing{options_.pack_on_host ? nullptr : &target,
                                options_.kernel_cache.get()};
    WeightPool* const pool = options_.weight_pool.get();
    auto others_wait = pool != nullptr ? pool->lock() : std::unique_lock<std::mutex>();
    weights_ = DeviceWeights(device_, program_, packing, pool);
    program_.phases.push_back({"weights", watch.milliseconds()});
    if (pool != nullptr) weights_.share(*device_, *pool);
    program_.phases.push_back({"machine code", loaded.get()});
    watch_ = std::make_unique<IndexWatch>(program_, target, *device_, options_.kernel_cache.get());
    if (others_wait) others_wait.unlock();  // another rank may be in this process
    if (has_collectives(program_)) order_ = options_.collective_order.get();
    if (options_.collective_memory != nullptr && has_collectives(program_)) {
      registers_arenas_ = options_.collective_memory->agree(arena_layout(program_));
    }
    prepare_known_shape();
  }

  ~DeviceExecutable() override {
    for (const auto& state : states_.idle()) {
      try {
        drain(*state);
      } catch (const std::exception&) {
        // A device that failed has nothing in flight.
      }
    }
  }

  void run(RunContext& context) override {
    if (device_ == nullptr) {
      throw UserError(
          "this session was compiled for a GPU that is not in this machine: it can be saved and "
          "inspected, but not run");
    }
    auto lease = states_.lease([&] { return new_state(); },
                               [stream = context.stream()](const DeviceRunState& state) {
                                 return state.stream == stream;
                               });
    DeviceRunState& state = *lease;
    state.flags.check(program_);  // of the Run before
    Stream stream = open_stream(context, state);
    const auto read_elements = [&](size_t input, const void* from, std::span<int64_t> to) {
      read_sizes(options_.written_sizes.get(), program_.inputs[input],
                 reinterpret_cast<Address>(from), stream, options_.deadline, to);
    };
    if (instances_.read(context, state.shapes, std::cref(read_elements))) adopt(state);
    if (state.callers.take(context, state.shapes)) bind(state);
    if (options_.written_sizes != nullptr) {
      note_sizes(*options_.written_sizes, program_, *state.shapes.instance, state.slots);
    }
    const device::CurrentHere current(*device_);  // from here on nobody else is called
    take_over(state, stream);
    state.shape_values.send(stream);
    // Of a capture that is not ours nothing runs now, and all of it again and again later.
    const bool is_recorded = stream.capturing();
    if (is_recorded) {
      require_capturable();
      lease.keep();
    }
    if (LaunchObserver* observer = context.observer(); observer != nullptr && !is_recorded) {
      if (order_ != nullptr) order_->before_launches(stream);
      enqueue_observed(stream, state, *observer);
    } else if (options_.graphs && !is_recorded && uncapturable_ == nullptr) {
      run_captured(context, stream, state);
    } else {
      if (order_ != nullptr && !is_recorded) order_->before_launches(stream);
      enqueue(stream, state);
      if (order_ != nullptr && !is_recorded) order_->after_launches(stream);
    }
    for (const std::string& plan : std::exchange(state.replaced, {})) context.warn(plan);
    if (is_recorded) return;
    if (state.stream_kept == nullptr && !options_.streams_last) record_end(state);
    if (context.stream() != nullptr) return;
    stream.synchronize(options_.deadline);
    state.in_flight = false;
    state.flags.check(program_);
  }

  void check_finished() override {
    states_.each_idle([&](DeviceRunState& state) { state.flags.check(program_); });
  }

  const std::vector<FusionReport>& fusions() const override { return program_.fusions; }
  const std::vector<KernelReport>& kernels() const override { return program_.kernels; }
  size_t weight_bytes() const override { return program_.weight_bytes; }
  size_t packed_bytes() const override { return program_.packed_bytes; }
  const std::vector<BuildPhase>& phases() const override { return program_.phases; }

 private:
  void run_captured(RunContext& context, Stream& stream, DeviceRunState& state) {
    if (order_ != nullptr) order_->before_graph(stream);
    const auto put = [&](Stream& target) {
      if (order_ != nullptr && &target == &stream) order_->before_launches(stream);
      enqueue(target, state);
    };
    // By reference: what a function copies it may allocate for.
    const bool by_graph = state.captured.run(device_, stream, state.shapes.instance,
                                             state.callers.addresses(), std::ref(put));
    if (!state.captured.refusal().empty() && !told_of_refusal_.exchange(true)) {
      context.warn("a partition runs without CUDA graphs, since it cannot be captured: " +
                   state.captured.refusal());
    }
    if (order_ == nullptr) return;
    by_graph ? order_->after_graph(stream) : order_->after_launches(stream);
  }

  void require_capturable() const {
    if (order_ != nullptr && options_.graphs) {
      throw UserError(
          "enable_cuda_graph=1 with several ranks: Tenon captures Runs itself, and nobody else "
          "may; "
          "leave the option out, or the capture");
    }
    if (uncapturable_ == nullptr) return;
    throw UserError("node '" + uncapturable_->node + "' runs " + uncapturable_->call->name() +
                    ", which no CUDA graph can hold: run it once without a capture, or disable the "
                    "library");
  }

  bool is_callers(size_t slot) const { return program_.slots[slot].is_callers(); }

  // Returns how many milliseconds it took.
  double load_kernels() {
    const Stopwatch whole;
    kernels_.resize(program_.gpu_code.size());
    program_.kernels.resize(kernels_.size());
    parallel_for_each(static_cast<int64_t>(kernels_.size()), [&](int64_t i) {
      const Stopwatch watch;
      kernels_[i] = device_->load(*program_.gpu_code[i], options_.kernel_cache.get());
      program_.kernels[i].compile_ms += watch.milliseconds();
    });
    return whole.milliseconds();
  }

  // Where no size is open the first Run finds its arena, and a graph that only gets the caller's
  // addresses. What does not fit, the Run says.
  void prepare_known_shape() {
    const auto instance = instances_.only();
    if (instance == nullptr) return;
    prepare_calls(*instance);
    auto lease = states_.lease([&] { return new_state(); });
    DeviceRunState& state = *lease;
    try {
      state.shapes.instance = instance;
      adopt(state);
      if (options_.graphs && uncapturable_ == nullptr) prepare_graph(state);
    } catch (const std::exception&) {
      state.shapes.instance.reset();
    }
  }

  // Copies that may be left out make another graph: that one waits for the caller's addresses.
  void prepare_graph(DeviceRunState& state) {
    constexpr size_t kMostBytes = 64 << 20;  // of what stands in for an input or output
    const auto is_elidable = [](const CompiledLaunch& launch) {
      return launch.elidable_copy.has_value();
    };
    const size_t bytes = largest_caller(*state.shapes.instance);
    if (bytes > kMostBytes || std::ranges::any_of(program_.launches, is_elidable)) return;
    const Buffer stand_in(device_, std::max<size_t>(bytes, 16), "inputs that are not there yet");
    state.callers.bind_all(stand_in.address(), state.slots, state.arguments);
    const device::CurrentHere current(*device_);
    state.captured.prepare(device_, state.shapes.instance,
                           [&](Stream& target) { enqueue(target, state); });
  }

  // No element has more than 8 bytes.
  static size_t largest_caller(const ShapeInstance& instance) {
    int64_t most = 0;
    for (const auto* shapes : {&instance.inputs, &instance.outputs}) {
      for (const std::vector<int64_t>& dims : *shapes) {
        int64_t bytes = 8;
        for (const int64_t dim : dims) bytes = checked_mul(bytes, dim);
        most = std::max(most, bytes);
      }
    }
    return static_cast<size_t>(most);
  }

  std::unique_ptr<DeviceRunState> new_state() {
    auto state = std::make_unique<DeviceRunState>(layout_, overlaps_);
    state->shapes = instances_.make_shapes();
    state->slots.resize(program_.slots.size());
    state->arguments.resize(layout_.arguments.size());
    for (const CompiledLaunch& launch : program_.launches) {
      const bool is_kernel = launch.kind == LaunchKind::kKernel;
      state->tma_descriptors.push_back(
          is_kernel ? TmaDescriptors(kernels_[launch.kernel]->tma_descriptors) : TmaDescriptors());
    }
    state->finished = std::make_unique<Event>(device_);
    state->collectives = std::make_unique<CollectiveStream>(device_, program_.dependencies);
    if (!watch_->empty()) state->flags = IndexFlags(device_, program_.launches.size());
    return state;
  }

  Stream open_stream(RunContext& context, DeviceRunState& state) {
    if (context.stream() != nullptr) {
      return Stream(device_, static_cast<device::StreamHandle>(context.stream()));
    }
    if (state.own_stream == nullptr) state.own_stream = std::make_unique<Stream>(device_);
    return Stream(device_, state.own_stream->handle());
  }

  // The arena may still be read by the Run that had it before, on another stream.
  void take_over(DeviceRunState& state, Stream& stream) const {
    // A stream that nobody keeps alive may be another one under the same handle.
    const bool is_same =
        state.stream == stream.handle() && (state.stream_kept != nullptr || options_.streams_last);
    if (!is_same) {
      if (state.in_flight) {
        record_end(state);
        stream.wait(*state.finished);
      }
      state.stream = stream.handle();
      state.stream_kept = Stream::keep_alive(state.stream);
    }
    state.in_flight = true;
    state.end_recorded = false;
  }

  void record_end(DeviceRunState& state) const {
    if (!state.end_recorded) Stream(device_, state.stream).record(*state.finished);
    state.end_recorded = true;
  }

  // Libraries make plans for these sizes, so that a Run finds them.
  void prepare_calls(const ShapeInstance& instance) {
    const device::CurrentHere current(*device_);
    const std::span<const int64_t> numbers = instance.indices;
    for (size_t i = 0; i < program_.launches.size(); ++i) {
      const CompiledLaunch& launch = program_.launches[i];
      const ShapeInstance::LaunchSize& size = instance.launches[i];
      if (launch.call == nullptr || size.tasks == 0) continue;
      launch.call->prepare(numbers.subspan(size.first_index, launch.indices.size()));
    }
  }

  // Makes `state` fit its shapes: arena, shape values and every argument that stays from Run to
  // Run.
  void adopt(DeviceRunState& state) {
    state.callers.unbind();
    auto instance = std::move(state.shapes.instance);
    prepare_calls(*instance);
    const auto arena_bytes = static_cast<size_t>(instance->arena_bytes);
    if (arena_bytes > state.arena.bytes()) {
      drain(state);
      state.captured.forget();
      state.arena = Buffer();
      if (options_.memory_limit > 0 && arena_bytes > options_.memory_limit) {
        throw device::OutOfMemory("intermediate results need " + std::to_string(arena_bytes) +
                                  " bytes, and memory_limit allows " +
                                  std::to_string(options_.memory_limit));
      }
      state.arena = make_arena(arena_bytes);
    }
    make_counters(state, static_cast<size_t>(instance->counter_bytes));
    for (size_t slot = 0; slot < state.slots.size(); ++slot) {
      const auto offset = static_cast<Address>(instance->offsets[slot]);
      const Slot::Kind kind = program_.slots[slot].kind;
      if (kind == Slot::Kind::kArena) state.slots[slot] = state.arena.address() + offset;
      if (kind == Slot::Kind::kCounters) state.slots[slot] = state.counters.address() + offset;
      if (kind == Slot::Kind::kConstant) state.slots[slot] = weights_.address(slot);
    }
    make_shape_values(state, *instance);
    for (size_t i = 0; i < layout_.arguments.size(); ++i) {
      const ArgumentLayout::Argument& argument = layout_.arguments[i];
      state.arguments[i] = argument.is_slot
                               ? state.slots[argument.index]
                               : static_cast<uint64_t>(instance->indices[argument.index]);
    }
    state.shapes.instance = std::move(instance);
  }

  // Ranks with the same layout come here in the same Run, or in Compile, before any collective of
  // it. What was refused once is not asked for again.
  Buffer make_arena(size_t bytes) {
    if (registers_arenas_) {
      if (auto memory = options_.collective_memory->make(bytes)) return {std::move(memory), bytes};
      registers_arenas_ = false;
    }
    return make_scratch(bytes, "the intermediate results of a partition");
  }

  Buffer make_scratch(size_t bytes, std::string_view what) const {
    if (options_.scratch) return {options_.scratch(bytes, what), bytes};
    return Buffer(device_, bytes, what);
  }

  // Zero before any stream may use them: nobody zeroes them again.
  void make_counters(DeviceRunState& state, size_t bytes) {
    if (bytes <= state.counters.bytes()) return;
    drain(state);
    state.captured.forget();
    state.counters = Buffer();
    Buffer counters = make_scratch(bytes, "the counters of a partition");
    Stream stream(device_);
    stream.fill(counters.address(), 0, bytes);
    stream.synchronize(options_.deadline);
    state.counters = std::move(counters);
  }

  // No kernel reads this state's memory any more.
  void drain(DeviceRunState& state) const {
    if (!state.in_flight) return;
    record_end(state);
    state.finished->synchronize();
    state.in_flight = false;
  }

  void make_shape_values(DeviceRunState& state, const ShapeInstance& instance) {
    state.shape_values.set(program_, instance);
    if (!state.shape_values.fits()) {
      drain(state);
      state.captured.forget();
      state.shape_values.allocate(device_);
    }
    for (size_t i = 0; i < state.shape_values.size(); ++i) {
      const size_t slot = program_.shape_writes[i].slot;
      if (!is_callers(slot)) state.slots[slot] = state.shape_values.address(i);
    }
  }

  void bind(DeviceRunState& state) {
    state.callers.bind(device_, *state.shapes.instance, state.slots, state.arguments, [&] {
      drain(state);
      state.captured.forget();
    });
  }

  bool is_left_out(const DeviceRunState& state, size_t number) const {
    const CompiledLaunch& launch = program_.launches[number];
    if (!launch.elidable_copy) return false;
    return is_brought(launch, state.shapes.instance->launches[number],
                      state.slots[launch.elidable_copy->from],
                      state.slots[launch.elidable_copy->to]);
  }

  // Events between the launches tell when each ran; the clocks meet at the first.
  void enqueue_observed(Stream& stream, DeviceRunState& state, LaunchObserver& observer) const {
    std::vector<std::unique_ptr<Event>> marks;
    const auto mark = [&] {
      marks.push_back(std::make_unique<Event>(device_, true));
      stream.record(*marks.back());
    };
    stream.synchronize(options_.deadline);
    const auto start = std::chrono::steady_clock::now();
    mark();
    enqueue(stream, state, mark);
    stream.synchronize(options_.deadline);
    const auto time_of = [&](size_t i) {
      const std::chrono::duration<float, std::milli> passed(
          Event::milliseconds(*marks[0], *marks[i]));
      return start + std::chrono::duration_cast<std::chrono::nanoseconds>(passed);
    };
    for (size_t i = 0; i < program_.launches.size(); ++i) {
      observer.launched(program_.launches[i].node, time_of(i), time_of(i + 1));
    }
  }

  // `launched`: called behind each launch; all are in order on the stream then.
  void enqueue(Stream& stream, DeviceRunState& state,
               const std::function<void()>& launched = {}) const {
    try {
      enqueue_launches(stream, state, launched);
    } catch (...) {
      state.collectives->join_rest(stream);
      throw;
    }
  }

  void enqueue_launches(Stream& stream, DeviceRunState& state,
                        const std::function<void()>& launched) const {
    const ShapeInstance& instance = *state.shapes.instance;
    const uint64_t* arguments = state.arguments.data();
    // Launches read inputs before they wait (PDL), so the first waits for all that may still be
    // making these. So does one behind a launch that launches no dependents, or behind a copy:
    // programs count on what those wrote.
    bool after_all = state.callers.enqueue_overlapped(stream, instance);
    after_all = copy_shape_values(stream, state) || after_all || !options_.inputs_ready;
    for (size_t i = 0; i < program_.launches.size(); ++i) {
      const CompiledLaunch& launch = program_.launches[i];
      if (state.collectives->join(stream, i) || launch.after_all) after_all = true;
      if (state.callers.enqueue_fetched(stream, instance, i)) after_all = true;
      const std::span of_launch(arguments, launch.is_buffer.size());
      const ShapeInstance::LaunchSize& size = instance.launches[i];
      for (const ShapeInstance::Check& check : size.checks) {
        after_all = watch_->enqueue(stream, check, state.slots[check.slot], state.flags.address(i),
                                    after_all);
      }
      if (size.tasks > 0 && !is_left_out(state, i)) {
        if (launch.kind == LaunchKind::kKernel) {
          stream.launch(*kernels_[launch.kernel], size.tasks, of_launch,
                        state.tma_descriptors[i].encode(*device_, launch.node, of_launch),
                        {.shared_bytes = launch.shared_bytes, .after_all = after_all});
        } else if (state.collectives->holds(i) && !launched) {
          enqueue_copy_or_call(state.collectives->fork(stream), launch, size, of_launch, nullptr);
          state.collectives->enqueued(i);
        } else {
          enqueue_copy_or_call(stream, launch, size, of_launch,
                               options_.replaces_failed_plans ? &state.replaced : nullptr);
        }
        after_all = !launches_dependents(i, of_launch);
      }
      arguments += of_launch.size();
      if (launched) launched();
    }
    state.collectives->join(stream, program_.launches.size());
  }

  // A library may do so with some sizes only.
  bool launches_dependents(size_t number, std::span<const uint64_t> arguments) const {
    if (!program_.dependencies.launches_dependents(number)) return false;
    const CompiledLaunch& launch = program_.launches[number];
    return launch.call == nullptr ||
           launch.call->launches_dependents(numbers_of(launch, arguments));
  }

  // To outputs that are sizes; true where there are some.
  bool copy_shape_values(Stream& stream, const DeviceRunState& state) const {
    bool copied = false;
    for (size_t i = 0; i < program_.shape_writes.size(); ++i) {
      const ShapeWrite& write = program_.shape_writes[i];
      const auto count = static_cast<int64_t>(state.shapes.instance->shape_writes[i].size());
      if (!is_callers(write.slot) || count == 0) continue;
      stream.copy(state.slots[write.slot], state.shape_values.address(i),
                  storage_bytes(write.dtype, count));
      copied = true;
    }
    return copied;
  }

  Program program_;
  std::shared_ptr<Device> device_;
  DeviceRunOptions options_;
  DeviceWeights weights_;
  std::vector<std::shared_ptr<const LoadedKernel>> kernels_;
  std::unique_ptr<IndexWatch> watch_;
  Instances instances_;
  StatePool<DeviceRunState> states_;
  const ArgumentLayout layout_;
  const CallerOverlaps overlaps_;
  bool registers_arenas_ = false;
  CollectiveOrder* order_ = nullptr;              // null: there is nothing to order
  const CompiledLaunch* uncapturable_ = nullptr;  // a launch that no CUDA graph can hold
  std::atomic<bool> told_of_refusal_ = false;     // of a capture
};

}  // namespace

std::unique_ptr<Executable> run_on_device(Program program, const codegen::GpuTarget& target,
                                          std::shared_ptr<device::Device> device,
                                          const DeviceRunOptions& options) {
  return std::make_unique<DeviceExecutable>(std::move(program), target, std::move(device), options);
}

}  // namespace tenon::kernels
