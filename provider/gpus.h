// The GPUs that a factory offers: what they are, the runtime's names for them and for their memory.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "kernels/device/arena.h"
#include "kernels/device/description.h"

namespace tenon::provider {

inline constexpr uint32_t kNvidia = 0x10DE;  // the PCI vendor
// The runtime takes eight devices of a factory; the last place is the CPU's.
inline constexpr size_t kMostGpus = 7;

using HardwareDevice = std::unique_ptr<OrtHardwareDevice, void (*)(OrtHardwareDevice*)>;
using MemoryInfo = std::unique_ptr<OrtMemoryInfo, void (*)(OrtMemoryInfo*)>;

class Gpu {
 public:
  explicit Gpu(device::Description what);
  // A GPU that need not be in this machine: models are compiled for it and cannot run.
  static std::unique_ptr<Gpu> absent();

  // Finds itself among the runtime's devices, or makes a device where the runtime saw none.
  OrtEpDevice* offer(OrtEpFactory& factory, const OrtHardwareDevice* const* devices, size_t count);

  // Whether the runtime means this one by a device that it was offered.
  bool is(const OrtHardwareDevice& device) const { return hardware_ == &device; }

  const device::Description description;
  bool present() const { return description.ordinal >= 0; }
  // Ours that says the same as the runtime's copy of it, and lives as long as the factory.
  const OrtMemoryInfo& own(const OrtMemoryInfo& info) const;

  void add(device::Arena& arena);
  void remove(device::Arena& arena);
  void add(device::Stream& stream);
  // Arenas bind freed pieces to streams: they hear of a stream that goes.
  void remove(device::Stream& stream) noexcept;
  bool has(device::StreamHandle stream) const;
  // The same for a stream of another provider's, whose end nobody tells us of.
  void forget(device::StreamHandle stream) noexcept;
  // Memory that the runtime took for what stays with a session: nothing else is put there later.
  void add_lasting(const void* memory, size_t bytes);
  void remove_lasting(const void* memory) noexcept;
  bool is_lasting(const void* memory) const;
  // Waits for the work on all streams, but for those that are being captured.
  void synchronize();

 private:
  HardwareDevice made_;                          // empty: the runtime has its own
  const OrtHardwareDevice* hardware_ = nullptr;  // either
  MemoryInfo device_memory_, pinned_memory_, weight_memory_;
  mutable std::mutex mutex_;
  std::set<device::Arena*> arenas_;
  std::set<device::Stream*> streams_;
  std::map<uintptr_t, size_t> lasting_;  // bytes by address
};

// "0000:1b:00.0", "00000000:1B:00.0" and "1b:00.0" are the same place.
bool same_pci_place(std::string_view a, std::string_view b);

}  // namespace tenon::provider
