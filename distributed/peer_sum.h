// Sums of small tensors over ranks of one host, by a kernel of ours on memory that the ranks' GPUs
// share: a token's all-reduce of some KB takes about as long as a kernel does, a fourth of NCCL's
// time, and overlaps the launches around it (PDL). NCCL has the rest.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/dtype.h"
#include "distributed/peer_memory.h"
#include "distributed/reduction.h"
#include "kernels/planning/link_model.h"

namespace tenon::distributed {

class PeerSum {
 public:
  static constexpr int kMostRanks = kernels::kMostDirectRanks;

  struct Answer {
    std::unique_ptr<PeerSum> sum;  // null on all ranks or on none
    std::string reason;
  };
  // All ranks call it; they are of one host. `shares_gpu`: two of them have the same GPU.
  static Answer connect(Store& store, std::shared_ptr<device::Device> device, bool shares_gpu,
                        std::chrono::milliseconds deadline);
  ~PeerSum();
  PeerSum(const PeerSum&) = delete;
  PeerSum& operator=(const PeerSum&) = delete;

  // The same on all ranks.
  bool takes(int64_t count, DType dtype, Reduction reduction) const;
  // Whether the next launch may begin before a sum has ended (griddepcontrol.launch_dependents).
  bool launches_dependents() const { return launches_dependents_; }
  // One at a time: each begins after the one before it has ended.
  void put(const void* in, void* out, int64_t count, DType dtype, device::StreamHandle stream);
  // Ends all waits on the GPU, now and later: sums are then worth nothing.
  void abort() noexcept;

 private:
  PeerSum(std::unique_ptr<PeerMemory> memory, bool shares_gpu);
  const device::LoadedKernel& kernel(DType dtype) const { return *kernels_.at(dtype); }

  const std::unique_ptr<PeerMemory> memory_;
  const bool launches_dependents_;
  device::Buffer counters_;
  // For tensors that begin at no multiple of 16 bytes.
  device::Buffer aligned_in_, aligned_out_;
  uint32_t* stop_ = nullptr;  // pinned, read by the kernel
  std::map<DType, std::shared_ptr<const device::LoadedKernel>> kernels_;
};

}  // namespace tenon::distributed
