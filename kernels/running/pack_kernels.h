// The pack kernels of a program, compiled and loaded: equal ones once. What cannot be had is no
// error: the host packs instead.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/disk_cache.h"
#include "kernels/device/device.h"
#include "kernels/running/program.h"

namespace tenon::kernels {

class PackKernels {
 public:
  PackKernels() = default;
  PackKernels(std::vector<std::shared_ptr<const codegen::Kernel>> kernels, device::Device& device,
              const codegen::GpuTarget& target, DiskCache* cache);
  static std::vector<std::shared_ptr<const codegen::Kernel>> all_of(const Program& program);

  // Whether a device can make the constant.
  bool can_make(const DevicePacking& packing) const;
  const device::LoadedKernel& loaded(const codegen::Kernel& kernel) const {
    return *loaded_.at(&kernel);
  }

 private:
  std::vector<std::shared_ptr<const codegen::Kernel>> kernels_;
  std::map<const codegen::Kernel*, std::shared_ptr<const device::LoadedKernel>> loaded_;
};

}  // namespace tenon::kernels
