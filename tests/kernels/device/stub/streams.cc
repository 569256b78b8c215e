// Order of work: what a stream does, what a capture notes, what a graph does again.
#include <fmt/format.h>

#include <limits>

#include "tests/kernels/device/stub/world.h"

namespace tenon::stub {
namespace {

// Counts one more work of the stream; all that the host has waited for comes before it.
WorkTime tick(World& world, Stream& stream) {
  join(stream.clock, world.host);
  return {stream.number, ++stream.clock[stream.number], &stream.clock};
}

void note_accesses(World& world, AccessHistory& history, const Work& work, const WorkTime& time) {
  for (const Access& access : work.accesses) {
    if (std::string conflict = history.add(access, time, work.name); !conflict.empty()) {
      world.report(std::move(conflict));
    }
  }
}

void run(World& world, int stream, const Work& work) {
  LaunchWindow& window = world.windows[stream];
  if (!work.pdl || !world.script.order) window.clear();
  if (!work.is_launch || !world.script.order) return work.run(nullptr);
  window.begin(work.name, *world.script.order + 0x9e3779b9U * ++world.launches_sampled);
  work.run(&window);
  for (std::string& finding : window.end()) world.report(std::move(finding));
}

void perform(World& world, int stream, const Work& work) {
  run(world, stream, work);
  for (const Access& access : work.accesses) {
    const Allocation* allocation = world.memory.find(access.base);
    if (access.writes && allocation != nullptr && world.memory.overrun(*allocation)) {
      world.report(fmt::format("{} wrote past the end of an allocation of {} bytes", work.name,
                               allocation->bytes));
    }
  }
}

}  // namespace

Stream* find_stream(World& world, device::StreamHandle handle, const char* function) {
  constexpr uintptr_t kLastSpecial = 2;  // null, and CUDA's two names for default streams
  if (reinterpret_cast<uintptr_t>(handle) <= kLastSpecial) return &current_device().default_stream;
  if (!world.streams.has(handle)) {
    world.report(fmt::format("{} on a stream that does not live", function));
    return nullptr;
  }
  auto* const stream = reinterpret_cast<Stream*>(handle);
  if (stream->device != current_device().number) {
    world.report(fmt::format("{} on a stream of device {} while device {} is current", function,
                             stream->device, current_device().number));
    return nullptr;
  }
  return stream;
}

Result enqueue(World& world, Stream& stream, Work work) {
  const WorkTime time = tick(world, stream);
  if (const auto capture = stream.capture) {
    if (capture->broken) return kCaptureInvalidated;
    note_accesses(world, capture->history, work, time);
    capture->graph.work.push_back(std::move(work));
    return kSuccess;
  }
  note_accesses(world, world.history, work, time);
  if (stream.hung) return kSuccess;
  const bool at_once = work.at_once || !world.script.lazy;
  world.pending[stream.number].push_back({time.stamp, stream.clock, std::move(work)});
  if (at_once) finish(world, stream.number, time.stamp);
  return kSuccess;
}

void finish(World& world, int stream, int64_t stamp) {
  std::deque<Pending>& queue = world.pending[stream];
  while (!queue.empty() && queue.front().stamp <= stamp) {
    const Pending next = std::move(queue.front());
    queue.pop_front();
    for (const auto& [other, count] : next.after) {
      if (other != stream) finish(world, other, count);
    }
    perform(world, stream, next.work);
  }
}

void finish(World& world, const Clock& clock) {
  for (const auto& [stream, count] : clock) finish(world, stream, count);
}

void finish_everything(World& world) {
  std::vector<int> streams;
  for (const auto& [stream, queue] : world.pending) streams.push_back(stream);
  for (const int stream : streams) finish(world, stream, std::numeric_limits<int64_t>::max());
}

Result replay(World& world, Stream& stream, const Graph& graph) {
  for (Work work : graph.work) {
    work.at_once = false;  // a graph reads host memory when it runs
    for (const Access& access : work.accesses) {
      const std::string name = fmt::format("graph replay of {}", work.name);
      if (audit(world, name, "an address", access.begin, 0) == nullptr) return kInvalidValue;
    }
    if (const Result result = enqueue(world, stream, work)) return result;
  }
  return kSuccess;
}

}  // namespace tenon::stub
