#include "tests/kernels/device/stub/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "kernels/device/specs.h"
#include "tests/kernels/device/stub/modules.h"

namespace tenon::stub {
namespace {

constexpr size_t kMemory = size_t{16} << 30;  // of each device
constexpr size_t kMostFindings = 200;

thread_local DeviceState* current = nullptr;

device::Description describe(int number, std::pair<int, int> capability) {
  device::Description description = device::named_description("sm_90a");
  for (const device::Spec& spec : device::specs()) {
    const auto candidate = device::parse_description(spec.text);
    if (std::pair(candidate.compute_major, candidate.compute_minor) == capability) {
      description = candidate;
    }
  }
  std::tie(description.compute_major, description.compute_minor) = capability;
  description.name = fmt::format("Stub GPU {}", number);
  description.pci_bus_id = fmt::format("0000:{:02x}:00.0", 0x10 + number);
  description.memory_bytes = kMemory;
  return description;
}

Result scripted(World& world, const char* function) {
  const long number = world.calls_since_script[function];
  const auto [first, last] = world.script.faults.equal_range(function);
  for (auto entry = first; entry != last; ++entry) {
    const Fault& fault = entry->second;
    if (number != fault.first && !(fault.after && number > fault.first)) continue;
    if (fault.sticky && current != nullptr) current->lost = fault.code;
    return fault.code;
  }
  return kSuccess;
}

// A call that CUDA refuses while this thread (or, in global mode, any) captures.
Result refuse_in_capture(World& world, const char* function) {
  constexpr int kGlobal = 0, kRelaxed = 2;
  Result result = kSuccess;
  for (const auto& capture : world.captures) {
    const bool concerned =
        capture->mode == kGlobal ||
        (capture->mode != kRelaxed && capture->thread == std::this_thread::get_id());
    if (!concerned) continue;
    world.report(fmt::format("{} during capture: it breaks the graph", function));
    capture->broken = true;
    result = kCaptureUnsupported;
  }
  return result;
}

bool is_launch(std::string_view function) {
  return function == "cuLaunchKernel" || function == "cuGraphLaunch";
}

Result admit(World& world, const char* function, unsigned needs) {
  ++world.calls[function];
  ++world.calls_since_script[function];
  const bool was_lost = current != nullptr && current->lost != kSuccess;
  if (was_lost && is_launch(function)) {
    world.report(fmt::format("{} after the device was lost", function));
  }
  if (const Result result = scripted(world, function)) return result;
  if ((needs & kInit) != 0 && !world.initialized) return kNotInitialized;
  if ((needs & kContext) == kContext) {
    if (current == nullptr || current->retained == 0) {
      world.report(fmt::format("{} without a current context", function));
      return kInvalidContext;
    }
    if (current->lost != kSuccess) return current->lost;
  }
  return (needs & kNoCapture) != 0 ? refuse_in_capture(world, function) : kSuccess;
}

}  // namespace

World& world() {
  static auto* const instance = new World;  // outlives everything
  return *instance;
}

DeviceState& current_device() { return *current; }
void set_current_device(DeviceState* device) { current = device; }

void World::report(std::string finding) {
  if (findings.size() < kMostFindings) findings.push_back(std::move(finding));
}

void World::make_devices() {
  for (int number = 0; number < script.devices; ++number) {
    auto state = std::make_unique<DeviceState>();
    state->number = number;
    state->description = describe(
        number,
        script.archs[std::min<size_t>(static_cast<size_t>(number), script.archs.size() - 1)]);
    state->limit = script.free_memory < 0 ? kMemory : static_cast<size_t>(script.free_memory);
    state->default_stream.number = streams_made++;
    state->default_stream.device = number;
    devices.push_back(std::move(state));
  }
}

std::string World::alive(int device) const {
  std::string text;
  const auto concerns = [&](int other) { return device < 0 || device == other; };
  for (const auto& [base, allocation] : memory.live()) {
    if (!concerns(allocation.device)) continue;
    text +=
        fmt::format("{} memory of {} bytes on device {}\n", allocation.pinned ? "pinned" : "device",
                    allocation.bytes, allocation.device);
  }
  const auto count = [&](const char* kind, const auto& handles, auto device_of) {
    const auto alive = std::ranges::count_if(
        handles.live(), [&](const void* handle) { return concerns(device_of(handle)); });
    if (alive > 0) text += fmt::format("{} {}\n", alive, kind);
  };
  count("streams", streams,
        [](auto* handle) { return static_cast<const Stream*>(handle)->device; });
  count("events", events, [](auto* handle) { return static_cast<const Event*>(handle)->device; });
  count("graphs", graphs, [](auto* handle) { return static_cast<const Graph*>(handle)->device; });
  count("instantiated graphs", graph_execs,
        [](auto* handle) { return static_cast<const Graph*>(handle)->device; });
  count("modules", modules,
        [](auto* handle) { return static_cast<const Module*>(handle)->device; });
  if (device < 0 && !mapped.empty()) text += fmt::format("{} mapped memories\n", mapped.size());
  for (const auto& state : devices) {
    if (device < 0 && state->retained > 0) {
      text += fmt::format("the context of device {}\n", state->number);
    }
  }
  return text;
}

Result call(const char* function, unsigned needs, const std::function<Result(World&)>& body) {
  refuse_out_of_time(function);
  World& everything = world();
  const std::lock_guard lock(everything.mutex);
  try {
    if (const Result result = admit(everything, function, needs)) return result;
    return body(everything);
  } catch (const std::exception& error) {
    everything.report(fmt::format("{}: {}", function, error.what()));
    return kUnknown;
  }
}

const Allocation* audit(World& world, const std::string& work, std::string_view what,
                        Address address, size_t bytes) {
  const Allocation* allocation = world.memory.find(address);
  if (allocation == nullptr) {
    world.report(fmt::format("{}: {} points to {}", work, what, world.memory.describe(address)));
    return nullptr;
  }
  if (!allocation->holds(address, bytes)) {
    world.report(fmt::format("{}: {} reaches {} bytes past an allocation of {}", work, what,
                             address - allocation->base + bytes - allocation->bytes,
                             allocation->bytes));
    return nullptr;
  }
  return allocation;
}

}  // namespace tenon::stub
