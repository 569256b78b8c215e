// The constants of a program in device memory: outside every arena, uploaded once.
#pragma once

#include <memory>
#include <vector>

#include "base/disk_cache.h"
#include "kernels/device/device.h"
#include "kernels/running/program.h"

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
  DeviceWeights(const std::shared_ptr<device::Device>& device, Program& program,
                const WeightPacking& packing = {});

  device::Address address(size_t slot) const { return addresses_[slot]; }  // 0: no constant

 private:
  std::vector<device::Address> addresses_;
  std::vector<device::Buffer> buffers_;
};

}  // namespace tenon::kernels
