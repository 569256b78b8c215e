// One of the processes of a job whose ranks have a GPU each, or the same one. They meet through the
// store; a rank that it loses ends what this one waits for.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "distributed/communicator.h"
#include "distributed/rendezvous/store.h"
#include "kernels/device/stream.h"

namespace tenon::distributed {

// Engines: "nccl", "nccl_peers" (small sums in peer memory), "nvshmem".
// Why `size` ranks of this engine cannot run here; empty: they can. Uses the GPU, which a process
// that forks later must not have done.
std::string why_no_ranks(const std::string& engine, int size);

class GpuRank {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // `silence`: a rank that is not heard of for so long is lost.
  GpuRank(const std::string& engine, const LaunchPlace& place, Milliseconds deadline,
          Milliseconds silence);
  ~GpuRank();
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  Communicator& ranks() { return *communicator_; }
  // For callers with host memory; the communicator is then the callee's.
  std::unique_ptr<Communicator> take_staged();
  const std::shared_ptr<device::Device>& device() const { return device_; }
  device::Stream& stream() { return *stream_; }
  Store& store() { return *store_; }
  // A communicator of this rank alone, after the job has failed.
  std::unique_ptr<Communicator> make_alone() const;

 private:
  void lose(const std::string& reason);
  std::unique_ptr<Communicator> connect();

  const std::string engine_;
  const Milliseconds deadline_;
  const std::shared_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::mutex mutex_;
  std::string lost_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Store> store_;  // goes first: its threads call lose()
};

}  // namespace tenon::distributed
