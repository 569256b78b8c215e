// Memory of every rank's GPU that all other ranks have mapped: what one stores there another polls,
// with no library between them. For ranks of one host whose GPUs reach each other.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "distributed/rendezvous/store.h"
#include "kernels/device/device.h"

namespace tenon::distributed {

class PeerMemory {
 public:
  struct Answer {
    std::unique_ptr<PeerMemory> memory;  // null on all ranks where one of them cannot
    std::string reason;                  // then: which rank, and why
  };
  // All ranks call it. `bytes` of each rank's memory, zero.
  static Answer share(Store& store, std::shared_ptr<device::Device> device, size_t bytes,
                      std::chrono::milliseconds deadline);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(addresses_.size()); }
  const std::shared_ptr<device::Device>& device() const { return device_; }
  // Where this process sees the memory of `rank`.
  device::Address of(int rank) const { return addresses_[rank]; }

 private:
  PeerMemory(Store& store, std::shared_ptr<device::Device> device);
  // Each gives its answer to all: empty, or what went wrong.
  std::string exported(size_t bytes, std::string& handle);
  std::string opened(const std::vector<std::string>& handles);

  const std::shared_ptr<device::Device> device_;
  const int rank_;
  device::Buffer mine_;
  std::vector<device::Address> addresses_;  // by rank; 0: not mapped
};

}  // namespace tenon::distributed
