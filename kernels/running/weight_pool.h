// Weights in device memory that sessions of one process share: found by what they hold, gone with
// the last session that uses them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/hash.h"
#include "kernels/device/device.h"

namespace tenon::kernels {

class WeightPool {
 public:
  using MakeMemory = std::function<std::shared_ptr<void>(size_t bytes, std::string_view purpose)>;

  // Weights are where `memory` says; empty: in plain memory.
  explicit WeightPool(MakeMemory memory = {}) : memory_(std::move(memory)) {}

  // Nobody else looks or adds while it is held: of two sessions that open at once the second finds
  // what the first has uploaded and checked. The rest is called under it.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  // Null: nobody has it on this device.
  std::shared_ptr<device::Buffer> find(const device::Device& device, const Digest& content,
                                       size_t bytes) const;
  void add(const device::Device& device, const Digest& content,
           const std::shared_ptr<device::Buffer>& weight);
  // For a weight that nobody has.
  device::Buffer make(const std::shared_ptr<device::Device>& device, size_t bytes,
                      std::string_view purpose) const;

 private:
  using Key = std::tuple<const device::Device*, Digest, size_t>;
  const MakeMemory memory_;
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<device::Buffer>> weights_;
};

}  // namespace tenon::kernels
