#include "provider/gpus.h"

#include <onnxruntime_ep_device_ep_metadata_keys.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>
#include <utility>

#include "provider/api.h"
#include "provider/key_values.h"
#include "provider/names.h"

namespace tenon::provider {
namespace {

const OrtApi& api() { return *runtime().api; }

MemoryInfo memory_info(const char* name, int ordinal, OrtDeviceMemoryType memory,
                       OrtAllocatorType allocator) {
  OrtMemoryInfo* info = nullptr;
  check(api().CreateMemoryInfo_V2(name, OrtMemoryInfoDeviceType_GPU, kNvidia, ordinal, memory, 0,
                                  allocator, &info));
  return {info, [](OrtMemoryInfo* i) { runtime().api->ReleaseMemoryInfo(i); }};
}

MemoryInfo no_memory() {
  return {nullptr, [](OrtMemoryInfo*) {}};
}
HardwareDevice no_hardware() {
  return {nullptr, [](OrtHardwareDevice*) {}};
}

const OrtHardwareDevice* find(const std::string& place, const OrtHardwareDevice* const* devices,
                              size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (api().HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_GPU) continue;
    if (api().HardwareDevice_VendorId(devices[i]) != kNvidia) continue;
    const char* found = api().GetKeyValue(api().HardwareDevice_Metadata(devices[i]), "pci_bus_id");
    if (found != nullptr && same_pci_place(found, place)) return devices[i];
  }
  return nullptr;
}

HardwareDevice make_hardware(const device::Description& gpu) {
  const KeyValues metadata = key_values({{"name", gpu.name}, {"pci_bus_id", gpu.pci_bus_id}});
  const bool present = gpu.ordinal >= 0;
  if (!present) {
    api().AddKeyValuePair(metadata.get(), kOrtHardwareDevice_MetadataKey_IsVirtual, "1");
  }
  OrtHardwareDevice* hardware = nullptr;
  check(runtime().ep->CreateHardwareDevice(OrtHardwareDeviceType_GPU, kNvidia,
                                           static_cast<uint32_t>(std::max(gpu.ordinal, 0)),
                                           "NVIDIA", metadata.get(), &hardware));
  return {hardware, [](OrtHardwareDevice* h) { runtime().ep->ReleaseHardwareDevice(h); }};
}

// Without leading zeros of the domain, lower case: "0:1b:00.0".
std::string plain_place(std::string_view text) {
  std::string place;
  for (const char c : text) place += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (std::ranges::count(place, ':') < 2) place.insert(0, "0:");
  place.erase(0, std::min(place.find_first_not_of('0'), place.size()));
  return place.starts_with(':') ? "0" + place : place;
}

}  // namespace

bool same_pci_place(std::string_view a, std::string_view b) {
  return !a.empty() && !b.empty() && plain_place(a) == plain_place(b);
}

Gpu::Gpu(device::Description what)
    : description(std::move(what)),
      made_(no_hardware()),
      device_memory_(no_memory()),
      pinned_memory_(no_memory()),
      weight_memory_(no_memory()) {
  if (!present()) return;
  const int id = description.ordinal;
  device_memory_ = memory_info("Tenon", id, OrtDeviceMemoryType_DEFAULT, OrtDeviceAllocator);
  pinned_memory_ =
      memory_info("TenonPinned", id, OrtDeviceMemoryType_HOST_ACCESSIBLE, OrtDeviceAllocator);
  weight_memory_ =
      memory_info("TenonWeights", id, OrtDeviceMemoryType_DEFAULT, OrtReadOnlyAllocator);
}

std::unique_ptr<Gpu> Gpu::absent() {
  device::Description description = device::named_description("sm_90a");
  description.ordinal = -1;
  description.pci_bus_id.clear();
  description.name = "virtual " + description.name;
  return std::make_unique<Gpu>(std::move(description));
}

OrtEpDevice* Gpu::offer(OrtEpFactory& factory, const OrtHardwareDevice* const* devices,
                        size_t count) {
  const OrtHardwareDevice* hardware = find(description.pci_bus_id, devices, count);
  if (hardware == nullptr) {
    made_ = make_hardware(description);
    hardware = made_.get();
  }
  hardware_ = hardware;
  const KeyValues metadata = key_values({
      {"tenon_target", "gpu"},
      {"cuda_device_id", std::to_string(description.ordinal)},
      {"cuda_device_name", description.name},
      {"cuda_compute_capability",
       std::to_string(description.compute_major) + "." + std::to_string(description.compute_minor)},
      {"tenon_arch", description.arch},
      {kWeightlessSupport, kWeightlessOfExternalData},
  });
  if (!present()) {
    api().AddKeyValuePair(metadata.get(), kOrtHardwareDevice_MetadataKey_IsVirtual, "1");
  }
  OrtEpDevice* offered = nullptr;
  check(runtime().ep->CreateEpDevice(&factory, hardware, metadata.get(), nullptr, &offered));
  for (const OrtMemoryInfo* info :
       {device_memory_.get(), pinned_memory_.get(), weight_memory_.get()}) {
    if (info != nullptr) check(runtime().ep->EpDevice_AddAllocatorInfo(offered, info));
  }
  return offered;
}

const OrtMemoryInfo& Gpu::own(const OrtMemoryInfo& info) const {
  OrtAllocatorType type{};
  check(api().MemoryInfoGetType(&info, &type));
  if (type == OrtReadOnlyAllocator) return *weight_memory_;
  const bool pinned =
      api().MemoryInfoGetDeviceMemType(&info) == OrtDeviceMemoryType_HOST_ACCESSIBLE;
  return pinned ? *pinned_memory_ : *device_memory_;
}

void Gpu::add(device::Arena& arena) {
  const std::lock_guard lock(mutex_);
  arenas_.insert(&arena);
}

void Gpu::remove(device::Arena& arena) {
  const std::lock_guard lock(mutex_);
  arenas_.erase(&arena);
}

void Gpu::add(device::Stream& stream) {
  const std::lock_guard lock(mutex_);
  streams_.insert(&stream);
}

void Gpu::remove(device::Stream& stream) noexcept {
  const std::lock_guard lock(mutex_);
  streams_.erase(&stream);
  for (device::Arena* arena : arenas_) arena->forget(stream.handle());
}

bool Gpu::has(device::StreamHandle stream) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(streams_, [&](const auto* own) { return own->handle() == stream; });
}

void Gpu::forget(device::StreamHandle stream) noexcept {
  const std::lock_guard lock(mutex_);
  for (device::Arena* arena : arenas_) arena->forget(stream);
}

void Gpu::add_lasting(const void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  lasting_[reinterpret_cast<uintptr_t>(memory)] = bytes;
}

void Gpu::remove_lasting(const void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  lasting_.erase(reinterpret_cast<uintptr_t>(memory));
}

bool Gpu::is_lasting(const void* memory) const {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const auto after = lasting_.upper_bound(address);
  return after != lasting_.begin() && address - std::prev(after)->first < std::prev(after)->second;
}

void Gpu::synchronize() {
  const std::lock_guard lock(mutex_);
  for (device::Stream* stream : streams_) {
    if (!stream->capturing()) stream->synchronize();
  }
}

}  // namespace tenon::provider
