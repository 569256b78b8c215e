#include "kernels/device/stream.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tenon::device {

Event::Event(std::shared_ptr<Device> device, bool timed) : device_(std::move(device)) {
  constexpr unsigned kWithoutTime = 2;
  device_->make_current();
  device_->check(device_->driver().event_create(&handle_, timed ? 0 : kWithoutTime),
                 "create an event");
}

Event::~Event() {
  if (device_->try_make_current()) device_->note(device_->driver().event_destroy(handle_));
}

bool Event::done() {
  device_->make_current();
  const Result result = device_->driver().event_query(handle_);
  if (result == kNotReady) return false;
  device_->check(result, "ask whether an event has passed");
  return true;
}

void Event::synchronize() {
  device_->make_current();
  device_->check(device_->driver().event_synchronize(handle_), "wait for an event");
}

float Event::milliseconds(Event& first, Event& second) {
  float milliseconds = 0;
  second.device_->make_current();
  second.device_->check(
      second.device_->driver().event_elapsed(&milliseconds, first.handle_, second.handle_),
      "take the time between two events");
  return milliseconds;
}

namespace {

// Destroys a graph that was taken over, whatever happens to it meanwhile.
class OwnedGraph {
 public:
  OwnedGraph(Device& device, GraphHandle graph) : device_(device), graph_(graph) {}
  ~OwnedGraph() {
    if (graph_ != nullptr && device_.try_make_current()) {
      device_.note(device_.driver().graph_destroy(graph_));
    }
  }
  OwnedGraph(const OwnedGraph&) = delete;
  OwnedGraph& operator=(const OwnedGraph&) = delete;

 private:
  Device& device_;
  GraphHandle graph_;
};

}  // namespace

Graph::Graph(std::shared_ptr<Device> device, GraphHandle graph) : device_(std::move(device)) {
  const OwnedGraph owned(*device_, graph);
  device_->make_current();
  device_->check(device_->driver().graph_instantiate(&exec_, graph, 0), "instantiate a graph");
}

Graph::~Graph() {
  if (exec_ != nullptr && device_->try_make_current()) {
    device_->note(device_->driver().graph_exec_destroy(exec_));
  }
}

bool Graph::update(GraphHandle graph) {
  constexpr Result kInvalidValue = 1, kNotSupported = 801, kUpdateFailure = 910;
  const OwnedGraph owned(*device_, graph);
  std::array<uint64_t, 8> details{};  // CUDA writes three words: why, and between which nodes
  device_->make_current();
  const Result result = device_->driver().graph_update(exec_, graph, details.data());
  for (const Result refusal : {kInvalidValue, kNotSupported, kUpdateFailure}) {
    if (result == refusal) return false;
  }
  device_->check(result, "update a graph");
  return true;
}

// A stream that this process made through here, until the last who holds it lets go.
class Stream::Owned {
 public:
  Owned(std::shared_ptr<Device> device, Priority priority) : device_(std::move(device)) {
    constexpr unsigned kNonBlocking = 1;  // does not wait for the default stream
    const Driver& driver = device_->driver();
    device_->make_current();
    if (priority == Priority::kUsual) {
      device_->check(driver.stream_create(&handle_, kNonBlocking), "create a stream");
      return;
    }
    int least = 0, greatest = 0;
    device_->check(driver.priority_range(&least, &greatest), "ask for priorities of streams");
    device_->check(driver.stream_create_with_priority(&handle_, kNonBlocking, greatest),
                   "create a stream of high priority");
  }
  // Not in the registry any more when the driver gives its handle to another.
  ~Owned() {
    {
      const std::lock_guard lock(registry().mutex);
      registry().streams.erase(handle_);
    }
    if (device_->try_make_current()) device_->note(device_->driver().stream_destroy(handle_));
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  StreamHandle handle() const { return handle_; }

  struct Registry {
    std::mutex mutex;
    std::map<StreamHandle, std::weak_ptr<const Owned>> streams;
  };
  static Registry& registry() {
    static auto* const registry = new Registry;  // streams may outlive statics
    return *registry;
  }

 private:
  std::shared_ptr<Device> device_;
  StreamHandle handle_ = nullptr;
};

Stream::Stream(std::shared_ptr<Device> device, Priority priority)
    : device_(std::move(device)), owned_(std::make_shared<const Owned>(device_, priority)) {
  handle_ = owned_->handle();
  const std::lock_guard lock(Owned::registry().mutex);
  Owned::registry().streams[handle_] = owned_;
}

Stream::Stream(std::shared_ptr<Device> device, StreamHandle borrowed)
    : device_(std::move(device)), handle_(borrowed) {}

Stream::~Stream() {
  owned_.reset();  // which ends a capture that was not ended
  leave_capture();
}

std::shared_ptr<const void> Stream::keep_alive(StreamHandle handle) {
  const std::lock_guard lock(Owned::registry().mutex);
  const auto found = Owned::registry().streams.find(handle);
  return found == Owned::registry().streams.end() ? nullptr : found->second.lock();
}

void Stream::remember(std::string_view work) {
  last_work_[work.copy(last_work_.data(), last_work_.size() - 1)] = 0;
}

void Stream::copy(Address to, Address from, size_t bytes) {
  if (bytes == 0) return;
  device_->make_current();
  remember("a copy");
  const Result result = device_->driver().copy_async(to, from, bytes, handle_);
  if (result != kSuccess) device_->check(result, fmt::format("copy {} bytes", bytes));
}

void Stream::fill(Address to, unsigned char value, size_t bytes) {
  if (bytes == 0) return;
  device_->make_current();
  remember("a fill");
  const Result result = device_->driver().fill_async(to, value, bytes, handle_);
  if (result != kSuccess) device_->check(result, fmt::format("fill {} bytes", bytes));
}

namespace {

// Pointers to all arguments, as the driver wants them.
class ArgumentPointers {
 public:
  ArgumentPointers(std::span<const uint64_t> arguments, std::span<const TensorMap> descriptors) {
    const size_t count = arguments.size() + descriptors.size();
    if (count > kUsual) {
      many_.resize(count + 1);
      pointers_ = many_.data();
    }
    void** next = pointers_;
    for (const uint64_t& argument : arguments) *next++ = const_cast<uint64_t*>(&argument);
    for (const TensorMap& descriptor : descriptors) *next++ = const_cast<TensorMap*>(&descriptor);
    // Not CUDA's wish: the stub driver of the tests counts arguments by it.
    *next = nullptr;
  }
  ArgumentPointers(const ArgumentPointers&) = delete;
  ArgumentPointers& operator=(const ArgumentPointers&) = delete;
  void** data() { return pointers_; }

 private:
  static constexpr size_t kUsual = 48;
  std::array<void*, kUsual + 1> usual_;
  std::vector<void*> many_;
  void** pointers_ = usual_.data();
};

}  // namespace

void Stream::launch(const LoadedKernel& kernel, int64_t tasks, std::span<const uint64_t> arguments,
                    std::span<const TensorMap> descriptors, const LaunchWishes& wishes) {
  if (tasks <= 0) return;
  if (tasks > std::numeric_limits<int32_t>::max()) {
    throw UserError(fmt::format("kernel '{}': {} CTAs are more than a launch takes (2^31 - 1)",
                                kernel.name, tasks));
  }
  ArgumentPointers pointers(arguments, descriptors);
  device_->make_current();
  remember(kernel.name);
  const auto ctas = static_cast<unsigned>(tasks);
  const bool pdl = kernel.pdl && !wishes.after_all;
  // What keeps others off is of no use to kernels that let nobody in.
  const int64_t shared_bytes =
      kernel.pdl ? std::max(kernel.shared_bytes, wishes.shared_bytes) : kernel.shared_bytes;
  const Result result =
      pdl || kernel.cluster > 1
          ? launch_with_attributes(kernel, ctas, shared_bytes, pdl, pointers.data())
          : device_->driver().launch(
                kernel.function, ctas, 1, 1, static_cast<unsigned>(kernel.threads), 1, 1,
                static_cast<unsigned>(shared_bytes), handle_, pointers.data(), nullptr);
  if (result != kSuccess) {
    device_->check(result, fmt::format("launch kernel '{}' with {} CTAs of {} threads and {} bytes "
                                       "of shared memory",
                                       kernel.name, tasks, kernel.threads, shared_bytes));
  }
}

Result Stream::launch_with_attributes(const LoadedKernel& kernel, unsigned tasks,
                                      int64_t shared_bytes, bool pdl, void** pointers) {
  if (device_->driver().launch_with == nullptr) {
    throw UserError(fmt::format(
        "kernel '{}': the NVIDIA driver has no function cuLaunchKernelEx: update it", kernel.name));
  }
  std::array<LaunchAttribute, 2> attributes;
  LaunchConfig config;
  config.grid_x = tasks;
  config.block_x = static_cast<unsigned>(kernel.threads);
  config.shared_bytes = static_cast<unsigned>(shared_bytes);
  config.stream = handle_;
  config.attributes = attributes.data();
  if (pdl) {
    LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = LaunchAttribute::kProgrammaticSerialization;
    attribute.value.allowed = 1;
  }
  if (kernel.cluster > 1) {
    LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = LaunchAttribute::kClusterDimension;
    attribute.value.cluster = {static_cast<unsigned>(kernel.cluster), 1, 1};
  }
  return device_->driver().launch_with(&config, kernel.function, pointers, nullptr);
}

void Stream::launch(const Graph& graph) {
  device_->make_current();
  remember("a graph");
  device_->check(device_->driver().graph_launch(graph.handle(), handle_), "launch a graph");
}

void Stream::record(Event& event) {
  device_->make_current();
  device_->check(device_->driver().event_record(event.handle(), handle_), "record an event");
}

void Stream::wait(const Event& event) {
  device_->make_current();
  device_->check(device_->driver().stream_wait(handle_, event.handle(), 0),
                 "make a stream wait for an event");
}

bool Stream::capturing() {
  int status = 0;
  device_->make_current();
  device_->check(device_->driver().stream_capturing(handle_, &status),
                 "ask whether a stream is being captured");
  return status != 0;
}

void Stream::begin_capture() {
  constexpr int kThisThreadOnly = 1;  // others may allocate and load meanwhile
  device_->make_current();
  device_->captures().begin_capture();
  captures_ = true;
  const Result result = device_->driver().begin_capture(handle_, kThisThreadOnly);
  if (result != kSuccess) leave_capture();
  device_->check(result, "begin to capture a stream");
}

void Stream::leave_capture() noexcept {
  if (std::exchange(captures_, false)) device_->captures().end_capture();
}

GraphHandle Stream::end_capture() {
  GraphHandle graph = nullptr;
  device_->make_current();
  const Result result = device_->driver().end_capture(handle_, &graph);
  leave_capture();
  device_->check(result, "end the capture of a stream");
  if (graph == nullptr) throw UserError("the capture of a stream was broken and gave no graph");
  return graph;
}

void Stream::abandon_capture() noexcept {
  GraphHandle graph = nullptr;
  if (device_->try_make_current()) {
    device_->note(device_->driver().end_capture(handle_, &graph));
    if (graph != nullptr) device_->note(device_->driver().graph_destroy(graph));
  }
  leave_capture();
}

void Stream::synchronize(std::chrono::milliseconds deadline) {
  using Clock = std::chrono::steady_clock;
  device_->make_current();
  if (deadline.count() == 0) {
    device_->check(device_->driver().stream_synchronize(handle_), "wait for a stream");
    return;
  }
  constexpr std::chrono::microseconds kSpin(200), kNap(50);
  const Clock::time_point begin = Clock::now();
  while (true) {
    const Result result = device_->driver().stream_query(handle_);
    if (result != kNotReady) {
      device_->check(result, "wait for a stream");
      return;
    }
    const auto waited = Clock::now() - begin;
    if (waited > deadline) break;
    if (waited > kSpin) std::this_thread::sleep_for(kNap);
  }
  throw UserError(fmt::format(
      "GPU {} ({}) did not finish within {} ms; the stream's last work: {}. Raise the deadline, or "
      "look for another process that occupies the GPU",
      device_->description().ordinal, device_->description().name, deadline.count(),
      last_work_[0] == 0 ? "unknown" : last_work_.data()));
}

}  // namespace tenon::device
