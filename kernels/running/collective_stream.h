// The stream on which a run state's collectives run aside (launch_dependencies.h): forked from the
// Run's stream and joined to it by events, in a capture as well. It is urgent: what other ranks
// wait for comes before what fills the GPU here.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device/stream.h"
#include "kernels/running/launch_dependencies.h"

namespace tenon::kernels {

class CollectiveStream {
 public:
  // Without collectives aside it holds nothing.
  CollectiveStream(const std::shared_ptr<device::Device>& device,
                   const LaunchDependencies& dependencies);
  bool holds(size_t launch) const { return launch < ended_.size() && ended_[launch] != nullptr; }

  // What is put on the stream comes after all that `run` has now.
  device::Stream& fork(device::Stream& run);
  // The collective was put on the stream.
  void enqueued(size_t launch);
  // `run` waits for collectives that are joined at the launch; true where there are some.
  bool join(device::Stream& run, size_t launch);
  // `run` waits for all that was not joined, where a Run ends in an error.
  void join_rest(device::Stream& run) noexcept;

 private:
  std::vector<std::unique_ptr<device::Event>> ended_;  // per launch; null: it runs in order
  std::vector<size_t> joined_;                         // per launch
  std::vector<size_t> open_;                           // that `run` has not waited for, in order
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<device::Event> forked_;
};

}  // namespace tenon::kernels
