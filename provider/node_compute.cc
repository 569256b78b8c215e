#include "provider/node_compute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "kernels/device/stream.h"
#include "provider/allocator.h"
#include "provider/api.h"
#include "provider/guard.h"
#include "provider/node_names.h"
#include "provider/stream.h"
#include "provider/tensor_info.h"

namespace tenon::provider {
namespace {

const OrtApi& api() { return *runtime().api; }

size_t index_of(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    throw InternalError(fmt::format("the fused node has no value named '{}'", name));
  }
  return static_cast<size_t>(found - names.begin());
}

std::vector<size_t> indices_of(const std::vector<std::string>& all,
                               const std::vector<std::string>& wanted) {
  std::vector<size_t> indices;
  for (const std::string& name : wanted) indices.push_back(index_of(all, name));
  return indices;
}

class Context final : public kernels::RunContext {
 public:
  Context(OrtKernelContext& context, const std::vector<NodeInput>& inputs,
          const std::vector<size_t>& outputs, void* stream, const LaunchNames& names)
      : context_(context), inputs_(inputs), outputs_(outputs), stream_(stream) {
    if (Profiler* profiler = Profiler::current()) observer_.emplace(names, *profiler);
  }

  void* stream() override { return stream_; }
  kernels::LaunchObserver* observer() override { return observer_ ? &*observer_ : nullptr; }

  Input input(size_t index) override {
    const OrtValue* value = nullptr;
    check(api_.KernelContext_GetInput(&context_, inputs_[index].index, &value));
    if (value == nullptr) throw UserError(fmt::format("input {} is missing", index));
    ONNXTensorElementDataType type{};
    const int64_t* dims = nullptr;
    size_t rank = 0;
    check(api_.GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
    if (type != inputs_[index].type) refuse_type(index, type);
    Input result;
    check(api_.GetTensorData(value, &result.data));
    result.dims = {dims, rank};
    return result;
  }

  void* output(size_t index, std::span<const int64_t> dims) override {
    OrtValue* value = nullptr;
    check(
        api_.KernelContext_GetOutput(&context_, outputs_[index], dims.data(), dims.size(), &value));
    void* data = nullptr;
    check(api_.GetTensorMutableData(value, &data));
    if (data == nullptr && std::ranges::find(dims, 0) == dims.end()) {
      throw device::OutOfMemory(fmt::format("there is no memory for output {} of the partition: {}",
                                            index, allocation_failure()));
    }
    return data;
  }

  void parallel_for(int64_t total, int64_t batches,
                    const std::function<void(int64_t, int64_t)>& fn) override {
    Job job{&fn, total, std::clamp<int64_t>(batches, 1, std::max<int64_t>(total, 1))};
    const auto run_batch = [](void* user, size_t batch) {
      const Job& work = *static_cast<Job*>(user);
      const auto b = static_cast<int64_t>(batch);
      (*work.fn)(work.total * b / work.batches, work.total * (b + 1) / work.batches);
    };
    check(api_.KernelContext_ParallelFor(&context_, run_batch, static_cast<size_t>(job.batches), 0,
                                         &job));
  }

  void warn(const std::string& message) override {
    const OrtLogger* logger = nullptr;
    check(api_.KernelContext_GetLogger(&context_, &logger));
    check(api_.Logger_LogMessage(logger, ORT_LOGGING_LEVEL_WARNING,
                                 ("[Tenon EP] " + message).c_str(), ORT_FILE, __LINE__, "Tenon"));
  }

 private:
  [[noreturn]] void refuse_type(size_t index, ONNXTensorElementDataType type) const {
    throw UserError(fmt::format("input {} of the partition is {}, and it was compiled for {}",
                                index, name(dtype_of(type)), name(dtype_of(inputs_[index].type))));
  }

  struct Job {
    const std::function<void(int64_t, int64_t)>* fn;
    int64_t total, batches;
  };
  const OrtApi& api_ = api();  // asked for hundreds of times in a Run
  OrtKernelContext& context_;
  const std::vector<NodeInput>& inputs_;
  const std::vector<size_t>& outputs_;
  void* const stream_;
  std::optional<LaunchNames::Observer> observer_;
};

// memcmp on the runtime's threads: a model's weights may all be defaults.
bool equal_bytes(const std::byte* a, const std::byte* b, size_t bytes, kernels::RunContext& run) {
  constexpr size_t kChunk = size_t{1} << 20;
  const auto chunks = static_cast<int64_t>((bytes + kChunk - 1) / kChunk);
  if (chunks <= 1) return std::memcmp(a, b, bytes) == 0;
  std::atomic<bool> equal = true;
  run.parallel_for(chunks, chunks, [&](int64_t first, int64_t last) {
    const size_t begin = static_cast<size_t>(first) * kChunk;
    const size_t end = std::min(static_cast<size_t>(last) * kChunk, bytes);
    if (equal.load(std::memory_order_relaxed) && std::memcmp(a + begin, b + begin, end - begin)) {
      equal.store(false, std::memory_order_relaxed);
    }
  });
  return equal.load();
}

}  // namespace

NodeCompute::NodeCompute(CompiledPartition compiled, const OrtNode& fused_node,
                         const Target& target, std::optional<device::StreamHandle> users)
    : OrtNodeComputeInfo{},
      device_(target.device),
      gpu_(target.gpu),
      users_stream_(users),
      executable_(std::move(compiled.executable)),
      launch_names_(compiled.report.fusions, compiled.report.node_names) {
  if (target.job) {
    rank_runs_.emplace(target.job, compiled.report.name, compiled.input_names,
                       compiled.report.sharding);
  }
  const std::vector<std::string> node_inputs = input_names(fused_node);
  const std::vector<const OrtValueInfo*> input_values = inputs_of(fused_node);
  for (const size_t index : indices_of(node_inputs, compiled.input_names)) {
    inputs_.push_back({index, element_type(*input_values[index])});
  }
  outputs_ = indices_of(output_names(fused_node), compiled.output_names);
  for (CompiledPartition::Default& value : compiled.defaults) {
    defaults_.push_back({index_of(node_inputs, value.name), value.name, value.value,
                         std::make_unique<std::atomic<const void*>>(nullptr)});
  }

  ort_version_supported = runtime().version;
  CreateState = [](OrtNodeComputeInfo*, OrtNodeComputeContext*, void** state) -> OrtStatus* {
    *state = nullptr;
    return nullptr;
  };
  Compute = [](OrtNodeComputeInfo* info, void*, OrtKernelContext* context) -> OrtStatus* {
    return guarded([&] { static_cast<NodeCompute*>(info)->compute(*context); });
  };
  ReleaseState = [](OrtNodeComputeInfo*, void*) {};
}

void NodeCompute::compute(OrtKernelContext& context) {
  void* stream = nullptr;
  if (device_) {
    check(api().KernelContext_GetGPUComputeStream(&context, &stream));
    if (users_stream_ && stream != *users_stream_) {
      throw UserError(
          "user_compute_stream is not the stream of this Run: another GPU provider of the session "
          "brings the streams; give it the same user_compute_stream");
    }
    note_stream(static_cast<device::StreamHandle>(stream));
  }
  Context run(context, inputs_, outputs_, stream, launch_names_);
  if (!rank_runs_) return run_once(context, run);
  rank_runs_->announce(run);
  try {
    run_once(context, run);
  } catch (...) {
    rank_runs_->give_up();
  }
}

void NodeCompute::run_once(OrtKernelContext& context, kernels::RunContext& run) {
  check_defaults(context, run);
  executable_->run(run);
  if (rank_runs_ && device_) rank_runs_->watch(device_, run.stream());
}

void NodeCompute::check_defaults(OrtKernelContext& context, kernels::RunContext& run) const {
  for (const Default& expected : defaults_) {
    const OrtValue* value = nullptr;
    check(api().KernelContext_GetInput(&context, expected.input, &value));
    const void* data = nullptr;
    if (value != nullptr) check(api().GetTensorData(value, &data));
    if (data == nullptr || data == expected.verified->load(std::memory_order_relaxed)) continue;
    size_t bytes = 0;
    check(api().GetTensorSizeInBytes(value, &bytes));
    if (!is_default(*expected.value, data, bytes, run)) {
      throw UserError(fmt::format(
          "input '{}' has a default value that Tenon packed when the session was created; feeding "
          "another value is not supported: leave it out, or make it an input without a default",
          expected.name));
    }
    // Only what the runtime keeps for initialisers never changes. On the host nothing tells its
    // memory from the caller's, who may write to it between two Runs.
    if (device_ && gpu_->is_lasting(data)) {
      expected.verified->store(data, std::memory_order_relaxed);
    }
  }
}

bool NodeCompute::is_default(const ir::Tensor& expected, const void* data, size_t bytes,
                             kernels::RunContext& run) const {
  if (bytes != expected.bytes) return false;
  if (!device_) return equal_bytes(expected.data, static_cast<const std::byte*>(data), bytes, run);
  // What the runtime keeps on the device comes back once; what a caller feeds, each time.
  device::Stream on(device_, static_cast<device::StreamHandle>(run.stream()));
  if (on.capturing()) {
    throw UserError(
        "a default value of the model came in new memory while a graph was being captured: run the "
        "session once before capturing");
  }
  std::vector<std::byte> copy(bytes);
  on.copy(reinterpret_cast<device::Address>(copy.data()), reinterpret_cast<device::Address>(data),
          bytes);
  on.synchronize();
  return std::memcmp(copy.data(), expected.data, bytes) == 0;
}

}  // namespace tenon::provider
