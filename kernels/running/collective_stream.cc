#include "kernels/running/collective_stream.h"

#include <exception>
#include <optional>

namespace tenon::kernels {

using device::Event;
using device::Stream;

CollectiveStream::CollectiveStream(const std::shared_ptr<device::Device>& device,
                                   const LaunchDependencies& dependencies) {
  const std::vector<LaunchDependencies::Launch>& launches = dependencies.launches();
  for (size_t i = 0; i < launches.size(); ++i) {
    if (launches[i].joined == 0) continue;
    ended_.resize(launches.size());
    joined_.resize(launches.size());
    ended_[i] = std::make_unique<Event>(device);
    joined_[i] = launches[i].joined;
  }
  if (ended_.empty()) return;
  stream_ = std::make_unique<Stream>(device, device::Priority::kUrgent);
  forked_ = std::make_unique<Event>(device);
}

Stream& CollectiveStream::fork(Stream& run) {
  run.record(*forked_);
  stream_->wait(*forked_);
  return *stream_;
}

void CollectiveStream::enqueued(size_t launch) {
  stream_->record(*ended_[launch]);
  open_.push_back(launch);
}

// The stream is in order: with the last that is joined here all before it have ended.
bool CollectiveStream::join(Stream& run, size_t launch) {
  std::optional<size_t> last;
  for (size_t i = 0; i < open_.size(); ++i) {
    if (joined_[open_[i]] <= launch) last = i;
  }
  if (!last) return false;
  run.wait(*ended_[open_[*last]]);
  open_.erase(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(*last) + 1);
  return true;
}

void CollectiveStream::join_rest(Stream& run) noexcept {
  open_.clear();
  if (stream_ == nullptr) return;
  try {
    stream_->record(*forked_);
    run.wait(*forked_);
  } catch (const std::exception&) {
    // A stream that failed, or whose capture is broken, has nothing to wait for.
  }
}

}  // namespace tenon::kernels
