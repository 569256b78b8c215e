#include "provider/factory.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "provider/api.h"
#include "provider/ep.h"
#include "provider/guard.h"
#include "provider/names.h"

namespace tenon::provider {
namespace {

Factory& self(OrtEpFactory* factory) { return *static_cast<Factory*>(factory); }

using KeyValuePairs = std::unique_ptr<OrtKeyValuePairs, void (*)(OrtKeyValuePairs*)>;

KeyValuePairs make_pairs() {
  OrtKeyValuePairs* pairs = nullptr;
  runtime().api->CreateKeyValuePairs(&pairs);
  return {pairs, [](OrtKeyValuePairs* p) { runtime().api->ReleaseKeyValuePairs(p); }};
}

// Our options among the session's configuration entries, with bare keys.
std::map<std::string, std::string> option_entries(const OrtSessionOptions& session_options) {
  OrtKeyValuePairs* raw = nullptr;
  check(runtime().api->GetSessionOptionsConfigEntries(&session_options, &raw));
  const KeyValuePairs pairs{raw,
                            [](OrtKeyValuePairs* p) { runtime().api->ReleaseKeyValuePairs(p); }};
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  runtime().api->GetKeyValuePairs(pairs.get(), &keys, &values, &count);
  std::map<std::string, std::string> entries;
  const size_t prefix = std::strlen(kOptionPrefix);
  for (size_t i = 0; i < count; ++i) {
    if (std::strncmp(keys[i], kOptionPrefix, prefix) == 0) entries[keys[i] + prefix] = values[i];
  }
  return entries;
}

}  // namespace

Factory::Factory(const OrtLogger& default_logger) : OrtEpFactory{} {
  ort_version_supported = runtime().version;
  GetName = [](const OrtEpFactory*) noexcept { return kProviderName; };
  GetVendor = [](const OrtEpFactory*) noexcept { return kVendor; };
  GetVendorId = [](const OrtEpFactory*) noexcept -> uint32_t { return 0; };
  GetVersion = [](const OrtEpFactory*) noexcept { return TENON_VERSION; };
  GetSupportedDevices = [](OrtEpFactory* factory, const OrtHardwareDevice* const* devices,
                           size_t device_count, OrtEpDevice** ep_devices, size_t max_ep_devices,
                           size_t* ep_device_count) noexcept {
    *ep_device_count = 0;
    return guarded([&] {
      *ep_device_count =
          self(factory).get_supported_devices(devices, device_count, ep_devices, max_ep_devices);
    });
  };
  CreateEp = [](OrtEpFactory* factory, const OrtHardwareDevice* const* devices,
                const OrtKeyValuePairs* const*, size_t device_count,
                const OrtSessionOptions* session_options, const OrtLogger* logger,
                OrtEp** ep) noexcept {
    *ep = nullptr;
    return guarded(
        [&] { *ep = self(factory).create_ep(devices, device_count, *session_options, *logger); });
  };
  ReleaseEp = [](OrtEpFactory*, OrtEp* ep) noexcept { delete static_cast<Ep*>(ep); };
  // Called unchecked at registration; host memory needs no transfer of ours.
  CreateDataTransfer = [](OrtEpFactory*, OrtDataTransferImpl** transfer) noexcept -> OrtStatus* {
    *transfer = nullptr;
    return nullptr;
  };
  IsStreamAware = [](const OrtEpFactory*) noexcept { return false; };
  GetNumCustomOpDomains = [](OrtEpFactory* factory, size_t* count) noexcept -> OrtStatus* {
    *count = self(factory).custom_ops_.domain_count();
    return nullptr;
  };
  GetCustomOpDomains = [](OrtEpFactory* factory, OrtCustomOpDomain** domains,
                          size_t count) noexcept {
    return guarded([&] { self(factory).custom_ops_.copy_domains(domains, count); });
  };

  const std::string message =
      fmt::format("[Tenon EP] {} loaded into ONNX Runtime {}", TENON_VERSION, runtime().release);
  check(runtime().api->Logger_LogMessage(&default_logger, ORT_LOGGING_LEVEL_INFO, message.c_str(),
                                         ORT_FILE, __LINE__, "Tenon"));
}

size_t Factory::get_supported_devices(const OrtHardwareDevice* const* devices, size_t device_count,
                                      OrtEpDevice** ep_devices, size_t max_ep_devices) {
  size_t found = 0;
  for (size_t i = 0; i < device_count && found < max_ep_devices; ++i) {
    if (runtime().api->HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_CPU) continue;
    const KeyValuePairs metadata = make_pairs();
    runtime().api->AddKeyValuePair(metadata.get(), "tenon_target", "cpu");
    check(runtime().ep->CreateEpDevice(this, devices[i], metadata.get(), nullptr,
                                       &ep_devices[found]));
    ++found;
  }
  return found;
}

OrtEp* Factory::create_ep(const OrtHardwareDevice* const* devices, size_t device_count,
                          const OrtSessionOptions& session_options, const OrtLogger& logger) const {
  if (device_count != 1) {
    throw UserError(fmt::format(
        "{} devices were given to one session; Tenon takes one (start one process per device)",
        device_count));
  }
  if (runtime().api->HardwareDevice_Type(devices[0]) != OrtHardwareDeviceType_CPU) {
    throw UserError("this version of Tenon runs on the CPU device only; choose that OrtEpDevice");
  }
  return new Ep(parse_options(option_entries(session_options)), logger);
}

}  // namespace tenon::provider
