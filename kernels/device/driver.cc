#include "kernels/device/driver.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/device/vendor_library.h"

namespace tenon::device {
namespace {

constexpr int kOldestVersion = 12000;  // PTX 8 begins here

// Set by handlers that are registered once the driver is up, so that they run before its own.
std::atomic<bool> forked{false}, exiting{false};

struct Advice {
  Result result;
  std::string_view text;
};

constexpr Advice kInitAdvice[] = {
    {3, "CUDA was initialised before this process was forked; start workers with 'spawn'"},
    {34, "this is the toolkit's link-time stub; take its folder off LD_LIBRARY_PATH"},
    {100, "no GPU is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {101, "CUDA_VISIBLE_DEVICES names a GPU that is not there"},
    {304, "the system refused; check that this user may open /dev/nvidia*"},
    {800, "not permitted; check that this user may open /dev/nvidia*"},
    {802, "the system is not ready; on machines with NVSwitch, start nvidia-fabricmanager"},
    {803, "the library and the kernel module differ in version; reboot after a driver update"},
    {804, "the forward-compatibility package does not support this GPU; remove it"},
    {805, "the MPS server does not answer; restart nvidia-cuda-mps-control or stop it"},
    {999, "the kernel module does not answer; check nvidia-smi, reload nvidia_uvm or reboot"},
};

std::string_view init_advice(Result result) {
  for (const Advice& advice : kInitAdvice) {
    if (advice.result == result) return advice.text;
  }
  return "check nvidia-smi";
}

DriverAnswer refused(std::string reason) {
  return {Support::no(std::move(reason)), nullptr, {}, 0};
}

std::vector<std::string> driver_paths() {
  if (const std::string chosen(named_in_environment("TENON_DRIVER_LIBRARY")); !chosen.empty()) {
    return {chosen};
  }
  return {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
}

// Name of the first function that the library lacks; empty: it has all.
std::string fill(const VendorLibrary& library, Driver& driver) {
#define TENON_FIND(member, symbol, parameters) \
  if (!library.find(symbol, driver.member)) return symbol;
  TENON_DRIVER_FUNCTIONS(TENON_FIND)
#undef TENON_FIND
#define TENON_TRY(member, symbol, parameters) library.find(symbol, driver.member);
  TENON_OPTIONAL_DRIVER_FUNCTIONS(TENON_TRY)
#undef TENON_TRY
  return {};
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The table lives for ever, as the library does.
DriverAnswer load() {
  const std::vector<std::string> paths = driver_paths();
  const VendorAnswer answer = open_vendor_library(paths);
  if (!answer.library) {
    return refused(fmt::format(
        "no NVIDIA driver: {} could not be loaded ({}). Install NVIDIA's driver (in a container: "
        "start it with the GPUs passed in, docker run --gpus all), or use the CPU device",
        paths.front(), answer.why));
  }
  const VendorLibrary& library = *answer.library;
  const std::string& path = library.path();
  const std::optional<int> told = library.version("cuDriverGetVersion");
  if (!told) {
    return refused(fmt::format("{} does not tell its version: it is no CUDA driver", path));
  }
  const int version = *told;
  if (version < kOldestVersion) {
    return refused(fmt::format(
        "the NVIDIA driver is too old: it supports CUDA {}, and {} is needed. Update the driver "
        "to release 525 or newer",
        version_text(version), version_text(kOldestVersion)));
  }
  auto table = std::make_unique<Driver>();
  if (const std::string missing = fill(library, *table); !missing.empty()) {
    return refused(fmt::format("the NVIDIA driver {} (CUDA {}) has no function {}: update it", path,
                               version_text(version), missing));
  }
  if (const Result result = table->init(0); result != kSuccess) {
    const char* name = nullptr;
    if (table->error_name(result, &name) != kSuccess || name == nullptr) name = "an unknown error";
    return refused(fmt::format("the NVIDIA driver {} (CUDA {}) does not start: {} ({}): {}", path,
                               version_text(version), name, result, init_advice(result)));
  }
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  std::atexit([] { exiting = true; });
  return {Support::yes(), table.release(), path, version};
}

}  // namespace

const DriverAnswer& driver() {
  static const DriverAnswer* const loaded = new DriverAnswer(load());
  if (!forked) return *loaded;
  static const DriverAnswer* const in_child = new DriverAnswer(refused(
      "this process was forked from one that uses the GPU, and CUDA does not survive a fork. "
      "Start it afresh (multiprocessing: set_start_method('spawn'))"));
  return *in_child;
}

bool driver_within_reach() { return !forked && !exiting; }

}  // namespace tenon::device
