#include "provider/factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "kernels/saved_program.h"
#include "provider/allocator.h"
#include "provider/api.h"
#include "provider/compatibility.h"
#include "provider/context_settings.h"
#include "provider/data_transfer.h"
#include "provider/ep.h"
#include "provider/guard.h"
#include "provider/join_job.h"
#include "provider/key_values.h"
#include "provider/names.h"
#include "provider/other_providers.h"
#include "provider/stream.h"
#include "provider/target.h"

namespace tenon::provider {
namespace {

// cuDNN is loaded for contexts that call it. The GPU itself is not touched.
OfferedDevice offered(const device::Description& gpu, const ContextOrigin& origin) {
  OfferedDevice device{gpu.arch, {}, true};
  if (origin.cudnn.empty()) return device;
  kernels::Settings settings;
  settings.gpu = gpu.target();
  settings.cudnn = true;
  device.no_cudnn = kernels::opens_cudnn_calls(settings).reason;
  return device;
}

Factory& self(OrtEpFactory* factory) { return *static_cast<Factory*>(factory); }

std::map<std::string, std::string> session_entries(const OrtSessionOptions& session_options) {
  OrtKeyValuePairs* raw = nullptr;
  check(runtime().api->GetSessionOptionsConfigEntries(&session_options, &raw));
  const KeyValues pairs = own(raw);
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  runtime().api->GetKeyValuePairs(pairs.get(), &keys, &values, &count);
  std::map<std::string, std::string> entries;
  for (size_t i = 0; i < count; ++i) entries[keys[i]] = values[i];
  return entries;
}

// Our options among a session's configuration entries, with bare keys.
std::map<std::string, std::string> option_entries(
    const std::map<std::string, std::string>& session) {
  std::map<std::string, std::string> entries;
  const size_t prefix = std::strlen(kOptionPrefix);
  for (const auto& [key, value] : session) {
    if (key.starts_with(kOptionPrefix)) entries[key.substr(prefix)] = value;
  }
  return entries;
}

// Only those that this machine has: a driver that is absent or broken leaves none.
std::vector<std::unique_ptr<Gpu>> list_gpus() {
  std::vector<std::unique_ptr<Gpu>> gpus;
  for (device::Description& found : device::Device::list()) {
    if (gpus.size() < kMostGpus) gpus.push_back(std::make_unique<Gpu>(std::move(found)));
  }
  return gpus;
}

}  // namespace

Factory::Factory(std::string_view registered_name, const OrtLogger& default_logger)
    : OrtEpFactory{}, logger_(default_logger), virtual_(registered_name.ends_with(".virtual")) {
  if (virtual_) {
    gpus_.push_back(Gpu::absent());
  } else {
    gpus_ = list_gpus();
  }
  ort_version_supported = runtime().version;
  GetName = [](const OrtEpFactory*) noexcept { return kProviderName; };
  GetVendor = [](const OrtEpFactory*) noexcept { return kVendor; };
  GetVendorId = [](const OrtEpFactory*) noexcept -> uint32_t { return 0; };
  GetVersion = [](const OrtEpFactory*) noexcept { return TENON_VERSION; };
  set_session_callbacks();
  set_gpu_callbacks();

  const std::string message =
      fmt::format("[Tenon EP] {} loaded into ONNX Runtime {}", TENON_VERSION, runtime().release);
  check(runtime().api->Logger_LogMessage(&default_logger, ORT_LOGGING_LEVEL_INFO, message.c_str(),
                                         ORT_FILE, __LINE__, "Tenon"));
}

void Factory::set_session_callbacks() {
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
                const OrtKeyValuePairs* const* metadata, size_t device_count,
                const OrtSessionOptions* session_options, const OrtLogger* logger,
                OrtEp** ep) noexcept {
    *ep = nullptr;
    return guarded([&] {
      Factory& me = self(factory);
      const std::map<std::string, std::string> entries = session_entries(*session_options);
      Options options = parse_options(option_entries(entries));
      ContextSettings context = context_settings(entries);
      if (options.target_arch.size() > 1 && !context.enable) {
        throw UserError(fmt::format(
            "target_arch names {} GPUs, and a session compiles for one: only a context model "
            "(ep.context_enable=1, `tenon compile`) holds several",
            options.target_arch.size()));
      }
      Gpu* gpu = me.choose_gpu({devices, device_count}, metadata, options);
      Target target = choose_target(options, gpu);
      target.weight_pool = me.weight_pool_of(context);
      target.job = join_job(options, target, context);
      if (target.job && target.job->needs_order()) {
        target.collective_order = std::make_shared<kernels::CollectiveOrder>(
            target.device, options.has_user_compute_stream);
      }
      *ep = new Ep(std::move(options), std::move(context), std::move(target), *logger);
    });
  };
  ValidateCompiledModelCompatibilityInfo =
      [](OrtEpFactory* factory, const OrtHardwareDevice* const* devices, size_t count,
         const char* info, OrtCompiledModelCompatibility* answer) noexcept {
        *answer = OrtCompiledModelCompatibility_EP_UNSUPPORTED;
        return guarded([&] { *answer = self(factory).judge({devices, count}, info); });
      };
  ReleaseEp = [](OrtEpFactory*, OrtEp* ep) noexcept { delete static_cast<Ep*>(ep); };
  GetNumCustomOpDomains = [](OrtEpFactory* factory, size_t* count) noexcept -> OrtStatus* {
    *count = self(factory).custom_ops_.domain_count();
    return nullptr;
  };
  GetCustomOpDomains = [](OrtEpFactory* factory, OrtCustomOpDomain** domains,
                          size_t count) noexcept {
    return guarded([&] { self(factory).custom_ops_.copy_domains(domains, count); });
  };
}

void Factory::set_gpu_callbacks() {
  CreateAllocator = [](OrtEpFactory* factory, const OrtMemoryInfo* info, const OrtKeyValuePairs*,
                       OrtAllocator** allocator) noexcept {
    *allocator = nullptr;
    return guarded([&] {
      Gpu& gpu = self(factory).gpu_of(*info);
      *allocator = new Allocator(gpu, gpu.own(*info));
    });
  };
  ReleaseAllocator = [](OrtEpFactory*, OrtAllocator* allocator) noexcept {
    delete static_cast<Allocator*>(allocator);
  };
  // Called unchecked at registration; host memory needs no transfer of ours.
  CreateDataTransfer = [](OrtEpFactory* factory, OrtDataTransferImpl** transfer) noexcept {
    *transfer = nullptr;
    return guarded([&] {
      const Factory& me = self(factory);
      if (me.has_gpu()) *transfer = new DataTransfer(me.gpus_);
    });
  };
  IsStreamAware = [](const OrtEpFactory* factory) noexcept {
    return static_cast<const Factory*>(factory)->has_gpu() && !shares_streams_with_stock_provider();
  };
  CreateSyncStreamForDevice = [](OrtEpFactory* factory, const OrtMemoryDevice* memory,
                                 const OrtKeyValuePairs*, OrtSyncStreamImpl** stream) noexcept {
    *stream = nullptr;
    return guarded([&] {
      const auto id = static_cast<int>(runtime().ep->MemoryDevice_GetDeviceId(memory));
      Gpu* gpu = self(factory).find(id);
      if (gpu == nullptr) throw UserError(fmt::format("Tenon has no GPU {}", id));
      *stream = new SyncStream(*gpu, device::Device::open(id), std::nullopt,
                               std::chrono::milliseconds(0));
    });
  };
}

std::shared_ptr<kernels::WeightPool> Factory::weight_pool_of(const ContextSettings& context) {
  if (!context.share && !context.stop_sharing) return nullptr;
  const std::lock_guard lock(mutex_);
  if (weight_pool_ == nullptr) weight_pool_ = std::make_shared<kernels::WeightPool>();
  const std::shared_ptr<kernels::WeightPool> pool = weight_pool_;
  if (context.stop_sharing) weight_pool_ = nullptr;
  return pool;
}

Gpu* Factory::find(int ordinal) const {
  const auto found = std::ranges::find_if(
      gpus_, [&](const auto& gpu) { return gpu->description.ordinal == ordinal; });
  return found == gpus_.end() ? nullptr : found->get();
}

Gpu& Factory::gpu_of(const OrtMemoryInfo& info) const {
  int id = 0;
  check(runtime().api->MemoryInfoGetId(&info, &id));
  Gpu* gpu = find(id);
  if (gpu == nullptr) throw UserError(fmt::format("Tenon has no GPU {} to take memory from", id));
  return *gpu;
}

OrtCompiledModelCompatibility Factory::judge(std::span<const OrtHardwareDevice* const> devices,
                                             const char* compatibility_info) const {
  Compatibility found;
  try {
    const ContextOrigin origin = parse_context_origin(compatibility_info);
    std::vector<OfferedDevice> offers;
    for (const OrtHardwareDevice* device : devices) {
      if (runtime().api->HardwareDevice_Type(device) == OrtHardwareDeviceType_CPU) {
        offers.push_back(offered(codegen::detect_host()));
      }
      for (const auto& gpu : gpus_) {
        if (gpu->is(*device)) offers.push_back(offered(gpu->description, origin));
      }
    }
    found = compatibility(origin, offers);
  } catch (const UserError& error) {
    found.reason = fmt::format("what it says of itself cannot be read: {}", error.what());
  }
  if (found.kind == Compatibility::Kind::kAsStored) {
    return OrtCompiledModelCompatibility_EP_SUPPORTED_OPTIMAL;
  }
  const bool runs = found.kind == Compatibility::Kind::kCompiledAgain;
  const std::string message =
      fmt::format("[Tenon EP] the context model {}: {}",
                  runs ? "is better compiled again" : "cannot run here", found.reason);
  check(runtime().api->Logger_LogMessage(&logger_, ORT_LOGGING_LEVEL_WARNING, message.c_str(),
                                         ORT_FILE, __LINE__, "Tenon"));
  return runs ? OrtCompiledModelCompatibility_EP_SUPPORTED_PREFER_RECOMPILATION
              : OrtCompiledModelCompatibility_EP_UNSUPPORTED;
}

size_t Factory::get_supported_devices(const OrtHardwareDevice* const* devices, size_t device_count,
                                      OrtEpDevice** ep_devices, size_t max_ep_devices) {
  size_t found = 0;
  for (const auto& gpu : gpus_) {
    if (found + 1 < max_ep_devices) ep_devices[found++] = gpu->offer(*this, devices, device_count);
  }
  if (virtual_) return found;
  for (size_t i = 0; i < device_count && found < max_ep_devices; ++i) {
    if (runtime().api->HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_CPU) continue;
    const KeyValues metadata = key_values({
        {"tenon_target", "cpu"},
        {kWeightlessSupport, kWeightlessOfExternalData},
    });
    check(runtime().ep->CreateEpDevice(this, devices[i], metadata.get(), nullptr,
                                       &ep_devices[found]));
    ++found;
  }
  return found;
}

// Tools give a session every device of a provider, so that the CPU comes along with a GPU.
Gpu* Factory::choose_gpu(std::span<const OrtHardwareDevice* const> devices,
                         const OrtKeyValuePairs* const* metadata, const Options& options) const {
  std::vector<Gpu*> gpus;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (runtime().api->HardwareDevice_Type(devices[i]) == OrtHardwareDeviceType_CPU) continue;
    const char* id = runtime().api->GetKeyValue(metadata[i], "cuda_device_id");
    gpus.push_back(id == nullptr ? nullptr : find(std::atoi(id)));
    if (gpus.back() == nullptr) throw UserError("the session's device is none that Tenon offers");
  }
  const bool has_cpu = gpus.size() < devices.size();
  if (gpus.empty() || (has_cpu && options.target == "cpu")) return nullptr;
  if (gpus.size() > 1) {
    throw UserError(fmt::format(
        "{} GPUs were given to one session; Tenon takes one (start one process per GPU)",
        gpus.size()));
  }
  return gpus.front();
}

}  // namespace tenon::provider
