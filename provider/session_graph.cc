#include "provider/session_graph.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "provider/api.h"

namespace tenon::provider {
namespace {

// Compiles nothing and allocates nothing any more once it has been through.
constexpr int kWarmRuns = 2;
constexpr int kNoGraph = -1;

int graph_id(const OrtRunOptions& options) {
  const char* text = runtime().api->GetRunConfigEntry(&options, "gpu_graph_id");
  if (text == nullptr || *text == '\0') return 0;
  int id = 0;
  const char* end = text + std::strlen(text);
  if (auto [next, error] = std::from_chars(text, end, id); error != std::errc{} || next != end) {
    throw UserError(fmt::format("run option gpu_graph_id='{}' must be a whole number", text));
  }
  return id;
}

}  // namespace

SessionGraph::SessionGraph(std::shared_ptr<device::Device> device,
                           std::unique_ptr<device::Stream> stream,
                           std::chrono::milliseconds deadline)
    : device_(std::move(device)), stream_(std::move(stream)), deadline_(deadline) {}

void SessionGraph::start(const OrtRunOptions& options) {
  const int id = graph_id(options);
  if (id != kNoGraph && !captured(id) && runs_[id] >= kWarmRuns) stream_->begin_capture();
}

void SessionGraph::end(const OrtRunOptions& options) {
  const int id = graph_id(options);
  if (id == kNoGraph) return;
  ++runs_[id];
  if (!stream_->capturing()) return;
  // Capturing ran nothing: the Run that was captured still has to happen.
  graphs_[id] = std::make_unique<device::Graph>(device_, stream_->end_capture());
  replay(id);
}

void SessionGraph::replay(int id) {
  stream_->launch(*graphs_.at(id));
  stream_->synchronize(deadline_);
}

}  // namespace tenon::provider
