#include "provider/profiler.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "provider/api.h"
#include "provider/guard.h"
#include "provider/names.h"

namespace tenon::provider {
namespace {

Profiler& self(OrtEpProfilerImpl* it) { return *static_cast<Profiler*>(it); }

// An event of the runtime begins, computes and ends on one thread, and events nest.
std::vector<Profiler*>& followers() {
  thread_local std::vector<Profiler*> stack;
  return stack;
}

int64_t nanoseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

}  // namespace

Profiler::Profiler() : OrtEpProfilerImpl{} {
  ort_version_supported = runtime().version;
  Release = [](OrtEpProfilerImpl* it) noexcept { delete &self(it); };
  StartProfiling = [](OrtEpProfilerImpl* it, int64_t offset_ns) noexcept -> OrtStatus* {
    self(it).started_ = std::chrono::steady_clock::now();
    self(it).offset_ns_ = offset_ns;
    return nullptr;
  };
  StartEvent = [](OrtEpProfilerImpl* it, uint64_t) noexcept {
    return guarded([&] { followers().push_back(&self(it)); });
  };
  StopEvent = [](OrtEpProfilerImpl*, uint64_t, const OrtProfilingEvent*) noexcept -> OrtStatus* {
    if (!followers().empty()) followers().pop_back();
    return nullptr;
  };
  EndProfiling = [](OrtEpProfilerImpl* it, OrtProfilingEventsContainer* container) noexcept {
    return guarded([&] { self(it).send(*container); });
  };
}

Profiler* Profiler::current() { return followers().empty() ? nullptr : followers().back(); }

void Profiler::add(Event event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

void Profiler::send(OrtProfilingEventsContainer& container) {
  const std::lock_guard lock(mutex_);
  for (const Event& event : std::exchange(events_, {})) {
    const char* keys[] = {"provider", "fusion", "onnx_nodes"};
    const char* values[] = {kProviderName, event.kind.c_str(), event.nodes.c_str()};
    const int64_t start_us = (offset_ns_ + nanoseconds(event.start - started_)) / 1000;
    const int64_t length_us = (nanoseconds(event.end - event.start) + 999) / 1000;
    OrtProfilingEvent* made = nullptr;
    check(runtime().ep->CreateProfilingEvent(OrtProfilingEventCategory_KERNEL, getpid(),
                                             event.thread, event.name.c_str(), start_us, length_us,
                                             keys, values, std::size(keys), &made));
    OrtStatus* status = runtime().ep->ProfilingEventsContainer_AddEvents(&container, &made, 1);
    runtime().ep->ReleaseProfilingEvent(made);
    check(status);
  }
}

LaunchNames::LaunchNames(const std::vector<kernels::FusionReport>& fusions,
                         const std::vector<std::string>& node_names) {
  for (const kernels::FusionReport& fusion : fusions) {
    std::string nodes;
    for (const int source : fusion.sources) {
      nodes += (nodes.empty() ? "" : "\n") + node_names.at(static_cast<size_t>(source));
    }
    fusions_[fusion.name] = {fusion.kind, nodes};
  }
}

void LaunchNames::Observer::launched(const std::string& fusion, Time start, Time end) {
  const auto found = names_.fusions_.find(fusion);
  const Fusion known = found == names_.fusions_.end() ? Fusion{} : found->second;
  profiler_.add({fusion, known.kind, known.nodes, start, end, gettid()});
}

}  // namespace tenon::provider
