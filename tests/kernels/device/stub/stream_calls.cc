// Streams, events, captures and graphs.
#include <fmt/format.h>

#include <algorithm>

#include "tests/kernels/device/stub/exports.h"
#include "tests/kernels/device/stub/world.h"

using namespace tenon::stub;
using tenon::device::EventHandle;
using tenon::device::GraphExecHandle;
using tenon::device::GraphHandle;
using tenon::device::StreamHandle;

namespace {

Event* find_event(World& world, EventHandle handle, const char* function) {
  if (world.events.has(handle)) return reinterpret_cast<Event*>(handle);
  world.report(fmt::format("{} on an event that does not live", function));
  return nullptr;
}

// The host is told how far a stream is, which a capture does not know.
Result ask_stream(World& world, const char* function, StreamHandle handle) {
  Stream* stream = find_stream(world, handle, function);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture != nullptr) {
    world.report(fmt::format("{} on a stream that is being captured", function));
    stream->capture->broken = true;
    return kCaptureUnsupported;
  }
  if (stream->hung) return kNotReady;
  finish(world, stream->clock);
  join(world.host, stream->clock);
  return kSuccess;
}

Result ask_event(World& world, const char* function, EventHandle handle) {
  Event* event = find_event(world, handle, function);
  if (event == nullptr) return kInvalidHandle;
  if (event->capture != nullptr) {
    world.report(fmt::format("{} on an event that was captured", function));
    event->capture->broken = true;
    return kCapturedEvent;
  }
  if (event->hung) return kNotReady;
  finish(world, event->clock);
  join(world.host, event->clock);
  return kSuccess;
}

// Waits as a thread would, without the lock, for what hangs.
template <typename Ask>
Result wait(const char* function, unsigned needs, const Ask& ask) {
  Result result = call(function, needs, ask);
  while (result == kNotReady) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(world().mutex);
    result = ask(world());
  }
  return result;
}

// Streams that died long ago are forgotten, so that a long run does not drown in their clocks.
void bury(World& world, int stream) {
  constexpr size_t kRemembered = 64;
  world.dead_streams.push_back(stream);
  if (world.dead_streams.size() <= kRemembered) return;
  const int oldest = world.dead_streams.front();
  world.dead_streams.pop_front();
  world.history.retire(oldest);
  world.pending.erase(oldest);
  world.host.erase(oldest);
  for (const void* handle : world.streams.live()) {
    const_cast<Stream*>(static_cast<const Stream*>(handle))->clock.erase(oldest);
  }
  for (const void* handle : world.events.live()) {
    const_cast<Event*>(static_cast<const Event*>(handle))->clock.erase(oldest);
  }
}

constexpr int kGreatestPriority = -5;  // the smaller the more urgent

Result make_stream(World& world, StreamHandle* handle) {
  auto stream = std::make_unique<Stream>();
  stream->number = world.streams_made++;
  stream->device = current_device().number;
  stream->hung = std::ranges::count(world.script.hung_streams, ++world.streams_since_script) > 0;
  *handle = reinterpret_cast<StreamHandle>(world.streams.add(std::move(stream)));
  return kSuccess;
}

void join_capture(Stream& stream, const std::shared_ptr<Capture>& capture) {
  if (stream.capture == capture) return;
  capture->before.emplace(&stream, stream.clock);
  stream.capture = capture;
}

Result finish_capture(World& world, Stream& origin, Graph& graph) {
  const std::shared_ptr<Capture> capture = origin.capture;
  Result result = capture->broken ? kCaptureInvalidated : kSuccess;
  for (const auto& [stream, clock] : capture->before) {
    if (result == kSuccess && origin.clock[stream->number] < stream->clock[stream->number]) {
      world.report(fmt::format("capture ends with stream {} not joined back", stream->number));
      result = kCaptureUnjoined;
    }
  }
  for (const auto& [stream, clock] : capture->before) {
    stream->clock = clock;
    stream->capture = nullptr;
  }
  std::erase(world.captures, capture);
  graph = std::move(capture->graph);
  return result;
}

}  // namespace

TENON_STUB_EXPORT Result cuStreamCreate(StreamHandle* handle, unsigned) {
  return call(__func__, kContext, [&](World& world) { return make_stream(world, handle); });
}

TENON_STUB_EXPORT Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call(__func__, kContext, [&](World&) -> Result {
    *least = 0;
    *greatest = kGreatestPriority;
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuStreamCreateWithPriority(StreamHandle* handle, unsigned, int priority) {
  return call(__func__, kContext, [&](World& world) -> Result {
    if (priority > 0 || priority < kGreatestPriority) {
      world.report(fmt::format("a stream of priority {}", priority));
    }
    return make_stream(world, handle);
  });
}

TENON_STUB_EXPORT Result cuStreamDestroy_v2(StreamHandle handle) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    Stream* stream = find_stream(world, handle, function);
    if (stream == nullptr) return kInvalidHandle;
    if (stream->capture != nullptr) {
      world.report("a stream is destroyed while it is being captured");
      Graph lost;
      stream->capture->broken = true;
      finish_capture(world, *stream->capture->origin, lost);
    }
    finish(world, stream->clock);  // CUDA lets it end, too
    bury(world, stream->number);
    world.streams.remove(handle);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuStreamQuery(StreamHandle handle) {
  const char* const function = __func__;
  return call(function, kContext,
              [&](World& world) { return ask_stream(world, function, handle); });
}

TENON_STUB_EXPORT Result cuStreamSynchronize(StreamHandle handle) {
  const char* const function = __func__;
  return wait(function, kContext,
              [&](World& world) { return ask_stream(world, function, handle); });
}

TENON_STUB_EXPORT Result cuCtxSynchronize() {
  const char* const function = __func__;
  return wait(function, kContext, [&](World& world) -> Result {
    for (const auto& capture : world.captures) {
      world.report(fmt::format("{} while a stream is being captured", function));
      capture->broken = true;
      return kCaptureUnsupported;
    }
    const int device = current_device().number;
    for (const void* handle : world.streams.live()) {
      const auto* stream = static_cast<const Stream*>(handle);
      if (stream->device != device) continue;
      if (stream->hung) return kNotReady;
      finish(world, stream->clock);
      join(world.host, stream->clock);
    }
    finish(world, current_device().default_stream.clock);
    join(world.host, current_device().default_stream.clock);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuStreamWaitEvent(StreamHandle handle, EventHandle event_handle,
                                           unsigned) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    Stream* stream = find_stream(world, handle, function);
    Event* event = find_event(world, event_handle, function);
    if (stream == nullptr || event == nullptr) return kInvalidHandle;
    if (event->capture != nullptr && std::ranges::count(world.captures, event->capture) > 0) {
      join_capture(*stream, event->capture);
    }
    join(stream->clock, event->clock);
    stream->hung = stream->hung || event->hung;
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuStreamIsCapturing(StreamHandle handle, int* status) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    constexpr int kNot = 0, kActive = 1, kBroken = 2;
    Stream* stream = find_stream(world, handle, function);
    if (stream == nullptr) return kInvalidHandle;
    *status = stream->capture == nullptr ? kNot : stream->capture->broken ? kBroken : kActive;
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuStreamBeginCapture_v2(StreamHandle handle, int mode) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    Stream* stream = find_stream(world, handle, function);
    if (stream == nullptr) return kInvalidHandle;
    if (stream->capture != nullptr) {
      world.report("a capture begins in a stream that is being captured");
      return 401;  // illegal state
    }
    if (stream == &current_device().default_stream) return kCaptureUnsupported;
    auto capture = std::make_shared<Capture>();
    capture->origin = stream;
    capture->thread = std::this_thread::get_id();
    capture->mode = mode;
    capture->graph.device = stream->device;
    join_capture(*stream, capture);
    world.captures.push_back(std::move(capture));
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuStreamEndCapture(StreamHandle handle, GraphHandle* handle_of_graph) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    *handle_of_graph = nullptr;
    Stream* stream = find_stream(world, handle, function);
    if (stream == nullptr) return kInvalidHandle;
    if (stream->capture == nullptr || stream->capture->origin != stream) return kCaptureUnmatched;
    auto graph = std::make_unique<Graph>();
    if (const Result result = finish_capture(world, *stream, *graph)) return result;
    *handle_of_graph = reinterpret_cast<GraphHandle>(world.graphs.add(std::move(graph)));
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuEventCreate(EventHandle* handle, unsigned flags) {
  return call(__func__, kContext, [&](World& world) -> Result {
    constexpr unsigned kWithoutTime = 2;
    auto event = std::make_unique<Event>();
    event->device = current_device().number;
    event->timed = (flags & kWithoutTime) == 0;
    *handle = reinterpret_cast<EventHandle>(world.events.add(std::move(event)));
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuEventDestroy_v2(EventHandle handle) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    if (find_event(world, handle, function) == nullptr) return kInvalidHandle;
    world.events.remove(handle);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuEventRecord(EventHandle event_handle, StreamHandle handle) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    Stream* stream = find_stream(world, handle, function);
    Event* event = find_event(world, event_handle, function);
    if (stream == nullptr || event == nullptr) return kInvalidHandle;
    if (event->device != stream->device) {
      world.report("an event is recorded on a stream of another device");
      return kInvalidHandle;
    }
    event->recorded = true;
    event->capture = stream->capture;
    event->hung = stream->hung;
    event->clock = stream->clock;
    event->time = std::chrono::steady_clock::now();
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuEventQuery(EventHandle handle) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) { return ask_event(world, function, handle); });
}

TENON_STUB_EXPORT Result cuEventSynchronize(EventHandle handle) {
  const char* const function = __func__;
  return wait(function, kContext, [&](World& world) { return ask_event(world, function, handle); });
}

TENON_STUB_EXPORT Result cuEventElapsedTime(float* milliseconds, EventHandle first_handle,
                                            EventHandle second_handle) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    Event* first = find_event(world, first_handle, function);
    Event* second = find_event(world, second_handle, function);
    if (first == nullptr || second == nullptr) return kInvalidHandle;
    if (!first->timed || !second->timed || !first->recorded || !second->recorded) {
      world.report("the time between events that keep none, or that were not recorded");
      return kInvalidHandle;
    }
    const std::chrono::duration<float, std::milli> elapsed = second->time - first->time;
    *milliseconds = elapsed.count();
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuGraphInstantiateWithFlags(GraphExecHandle* exec, GraphHandle handle,
                                                     unsigned long long) {
  return call(__func__, kContext, [&](World& world) -> Result {
    if (!world.graphs.has(handle)) return kInvalidHandle;
    auto copy = std::make_unique<Graph>(*reinterpret_cast<const Graph*>(handle));
    *exec = reinterpret_cast<GraphExecHandle>(world.graph_execs.add(std::move(copy)));
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuGraphExecUpdate_v2(GraphExecHandle exec_handle, GraphHandle handle,
                                              void*) {
  return call(__func__, kContext, [&](World& world) -> Result {
    if (!world.graphs.has(handle) || !world.graph_execs.has(exec_handle)) return kInvalidHandle;
    const Graph& graph = *reinterpret_cast<const Graph*>(handle);
    Graph& exec = *reinterpret_cast<Graph*>(exec_handle);
    if (!std::ranges::equal(graph.work, exec.work, {}, &Work::name, &Work::name)) {
      return kUpdateFailure;
    }
    exec = graph;
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuGraphLaunch(GraphExecHandle exec, StreamHandle handle) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    Stream* stream = find_stream(world, handle, function);
    if (stream == nullptr) return kInvalidHandle;
    if (!world.graph_execs.has(exec)) {
      world.report("a graph is launched that does not live");
      return kInvalidHandle;
    }
    return replay(world, *stream, *reinterpret_cast<const Graph*>(exec));
  });
}

TENON_STUB_EXPORT Result cuGraphDestroy(GraphHandle handle) {
  return call(__func__, kContext, [&](World& world) -> Result {
    return world.graphs.remove(handle) ? kSuccess : kInvalidHandle;
  });
}

TENON_STUB_EXPORT Result cuGraphExecDestroy(GraphExecHandle handle) {
  return call(__func__, kContext, [&](World& world) -> Result {
    return world.graph_execs.remove(handle) ? kSuccess : kInvalidHandle;
  });
}
