// MemcpyFromHost and MemcpyToHost: what the runtime puts between a GPU's nodes and the CPU's.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>

#include "kernels/device/device.h"

namespace tenon::provider {

class MemcpyKernels {
 public:
  explicit MemcpyKernels(std::shared_ptr<device::Device> device);
  const OrtKernelRegistry* registry() const { return registry_.get(); }

 private:
  std::shared_ptr<device::Device> device_;  // the kernels borrow it
  std::unique_ptr<OrtKernelRegistry, void (*)(OrtKernelRegistry*)> registry_;
};

}  // namespace tenon::provider
