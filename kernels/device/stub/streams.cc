// Order of work: what a stream does, what a capture notes, what a graph does again.
#include <fmt/format.h>

#include "kernels/device/stub/world.h"

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

void perform(World& world, const Work& work) {
  work.run();
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
  if (!stream.hung) perform(world, work);
  return kSuccess;
}

Result replay(World& world, Stream& stream, const Graph& graph) {
  for (const Work& work : graph.work) {
    for (const Access& access : work.accesses) {
      const std::string name = fmt::format("graph replay of {}", work.name);
      if (audit(world, name, "an address", access.begin, 0) == nullptr) return kInvalidValue;
    }
    if (const Result result = enqueue(world, stream, work)) return result;
  }
  return kSuccess;
}

}  // namespace tenon::stub
