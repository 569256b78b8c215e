// What the runtime asks before any session exists: names, devices, custom ops; and makes Eps.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/running/weight_pool.h"
#include "provider/context_settings.h"
#include "provider/custom_ops.h"
#include "provider/gpus.h"
#include "provider/options.h"

namespace tenon::provider {

class Factory : public OrtEpFactory {
 public:
  // A name that ends in ".virtual" asks for a GPU that need not be in this machine.
  Factory(std::string_view registered_name, const OrtLogger& default_logger);

 private:
  void set_session_callbacks();
  void set_gpu_callbacks();
  size_t get_supported_devices(const OrtHardwareDevice* const* devices, size_t device_count,
                               OrtEpDevice** ep_devices, size_t max_ep_devices);
  // Null: the session runs on the CPU.
  Gpu* choose_gpu(std::span<const OrtHardwareDevice* const> devices,
                  const OrtKeyValuePairs* const* metadata, const Options& options) const;
  Gpu* find(int ordinal) const;  // null: not one of ours
  OrtCompiledModelCompatibility judge(std::span<const OrtHardwareDevice* const> devices,
                                      const char* compatibility_info) const;
  Gpu& gpu_of(const OrtMemoryInfo& info) const;
  // Null: the session shares nothing.
  std::shared_ptr<kernels::WeightPool> weight_pool_of(const ContextSettings& context);

  CustomOps custom_ops_;
  bool has_gpu() const { return !virtual_ && !gpus_.empty(); }
  const OrtLogger& logger_;
  const bool virtual_;
  std::mutex mutex_;
  std::shared_ptr<kernels::WeightPool> weight_pool_;  // of sessions that share; null: none do
  std::vector<std::unique_ptr<Gpu>> gpus_;
};

}  // namespace tenon::provider
