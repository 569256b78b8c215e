// The constants of a program in device memory: outside every arena, uploaded once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/disk_cache.h"
#include "kernels/device/device.h"
#include "kernels/running/program.h"
#include "kernels/running/weight_pool.h"

namespace tenon::kernels {

// Where constants that a device can pack itself are packed.
struct WeightPacking {
  const codegen::GpuTarget* target = nullptr;  // whose kernels do it; null: the host packs all
  DiskCache* cache = nullptr;                  // of kernels
};

class DeviceWeights {
 public:
  DeviceWeights() = default;
  // Lets go of the host's copies, but for those whose indices are checked when a shape comes.
  // Throws device::OutOfMemory naming the weight that does not fit.
  // With a pool, locked: what it has is not uploaded again, large weights by themselves and small
  // ones where all that lie beside them are equal, too.
  DeviceWeights(const std::shared_ptr<device::Device>& device, Program& program,
                const WeightPacking& packing = {}, const WeightPool* pool = nullptr);
  // For others to find, once they are known to be right.
  void share(const device::Device& device, WeightPool& pool) const;

  device::Address address(size_t slot) const { return addresses_[slot]; }  // 0: no constant

 private:
  // A weight, or several side by side.
  struct Held {
    std::optional<Digest> content;
    std::shared_ptr<device::Buffer> buffer;
  };
  bool hold(const std::shared_ptr<device::Device>& device, const std::optional<Digest>& content,
            size_t bytes, const std::string& purpose, const WeightPool* pool);
  // Gives every constant an address; true for those that have to be uploaded.
  std::vector<bool> place(const std::shared_ptr<device::Device>& device,
                          const std::vector<Slot>& slots, const WeightPool* pool);

  std::vector<device::Address> addresses_;
  std::vector<Held> held_;
};

}  // namespace tenon::kernels
