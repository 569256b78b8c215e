#include "kernels/running/captured_runs.h"

#include <algorithm>

#include "base/error.h"

namespace tenon::kernels {

using device::Address;
using device::Graph;
using device::GraphHandle;
using device::Stream;

CapturedRuns::Captured* CapturedRuns::find(const ShapeInstance* instance,
                                           const std::vector<Address>& callers) {
  const auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const Captured& captured) {
    return captured.instance.get() == instance && captured.callers == callers;
  });
  if (found == graphs_.end()) return nullptr;
  if (found != graphs_.begin()) std::rotate(graphs_.begin(), found, found + 1);
  return &graphs_.front();
}

// The entry to capture into: one that no caller's addresses are in, a new one while there is room,
// else the one of this shape that was used least recently.
CapturedRuns::Captured& CapturedRuns::place_for(
    const std::shared_ptr<const ShapeInstance>& instance) {
  const auto same = [&](const Captured& captured) { return captured.instance == instance; };
  const auto prepared = std::find_if(graphs_.begin(), graphs_.end(), [&](const Captured& captured) {
    return same(captured) && captured.callers.empty() && captured.graph != nullptr;
  });
  if (prepared != graphs_.end()) {
    std::rotate(graphs_.begin(), prepared, prepared + 1);
    return graphs_.front();
  }
  const auto count = static_cast<size_t>(std::count_if(graphs_.begin(), graphs_.end(), same));
  if (count >= kGraphsPerShape) {
    const auto oldest = std::find_if(graphs_.rbegin(), graphs_.rend(), same).base() - 1;
    std::rotate(graphs_.begin(), oldest, oldest + 1);
    return graphs_.front();
  }
  if (graphs_.size() >= kGraphs) graphs_.pop_back();
  graphs_.insert(graphs_.begin(), Captured{instance, {}, nullptr});
  return graphs_.front();
}

GraphHandle CapturedRuns::capture(const std::shared_ptr<device::Device>& device,
                                  const std::function<void(Stream&)>& enqueue) {
  if (recorder_ == nullptr) recorder_ = std::make_unique<Stream>(device);
  recorder_->begin_capture();
  try {
    enqueue(*recorder_);
  } catch (...) {
    // The stream must leave capture, whatever is thrown on the way.
    recorder_->abandon_capture();
    recorder_.reset();
    throw;
  }
  return recorder_->end_capture();
}

void CapturedRuns::prepare(const std::shared_ptr<device::Device>& device,
                           const std::shared_ptr<const ShapeInstance>& instance,
                           const std::function<void(Stream&)>& enqueue) {
  place_for(instance).graph = std::make_unique<Graph>(device, capture(device, enqueue));
}

bool CapturedRuns::run(const std::shared_ptr<device::Device>& device, Stream& stream,
                       const std::shared_ptr<const ShapeInstance>& instance,
                       const std::vector<Address>& callers,
                       const std::function<void(Stream&)>& enqueue) {
  Captured* captured = find(instance.get(), callers);
  if (captured != nullptr && captured->graph != nullptr) {
    stream.launch(*captured->graph);
    return true;
  }
  if (!refusal_.empty()) {
    enqueue(stream);
    return false;
  }
  const bool seen = std::any_of(graphs_.begin(), graphs_.end(),
                                [&](const Captured& other) { return other.instance == instance; });
  if (!seen) {
    place_for(instance).callers = callers;
    enqueue(stream);
    return false;
  }
  Captured& place = captured != nullptr ? *captured : place_for(instance);
  const Graph* graph = nullptr;
  try {
    graph = &recapture(place, device, enqueue);
  } catch (const device::DeviceLost&) {
    throw;
  } catch (const UserError& error) {
    enqueue(stream);  // which throws where it was not the capture's fault
    refusal_ = error.what();
    return false;
  }
  place.callers = callers;
  stream.launch(*graph);
  return true;
}

const Graph& CapturedRuns::recapture(Captured& place, const std::shared_ptr<device::Device>& device,
                                     const std::function<void(Stream&)>& enqueue) {
  place.callers.clear();  // until the graph is what it says
  if (place.graph == nullptr || !place.graph->update(capture(device, enqueue))) {
    place.graph.reset();
    place.graph = std::make_unique<Graph>(device, capture(device, enqueue));
  }
  return *place.graph;
}

}  // namespace tenon::kernels
