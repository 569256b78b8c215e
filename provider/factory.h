// What the runtime asks before any session exists: names, devices, custom ops; and makes Eps.
#pragma once

#include <onnxruntime_c_api.h>

#include "provider/custom_ops.h"

namespace tenon::provider {

class Factory : public OrtEpFactory {
 public:
  explicit Factory(const OrtLogger& default_logger);

 private:
  size_t get_supported_devices(const OrtHardwareDevice* const* devices, size_t device_count,
                               OrtEpDevice** ep_devices, size_t max_ep_devices);
  OrtEp* create_ep(const OrtHardwareDevice* const* devices, size_t device_count,
                   const OrtSessionOptions& session_options, const OrtLogger& logger) const;

  CustomOps custom_ops_;
};

}  // namespace tenon::provider
