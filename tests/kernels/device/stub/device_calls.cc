// The process, devices, contexts and the names of errors.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/kernels/device/stub/exports.h"
#include "tests/kernels/device/stub/world.h"

using namespace tenon::stub;
using tenon::device::ContextHandle;
using tenon::device::Ordinal;

namespace {

struct Error {
  Result result;
  const char* name;
  const char* text;
};
constexpr Error kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kInvalidPtx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kOutOfResources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested"},
    {kMisaligned, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {kCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture began elsewhere"},
    {kCaptureUnjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "a stream was not joined back"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on a captured event"},
    {kUpdateFailure, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graphs differ"},
    {kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Error* find_error(Result result) {
  for (const Error& error : kErrors) {
    if (error.result == result) return &error;
  }
  return nullptr;
}

std::atomic<pid_t> owner{0};
std::atomic<bool> exited{false};

void end_of_process() {
  exited = true;
  const char* strict = std::getenv("TENON_STUB_STRICT");
  if (strict == nullptr || *strict == 0 || world().findings.empty()) return;
  for (const std::string& finding : world().findings) {
    std::fprintf(stderr, "stub driver: %s\n", finding.c_str());
  }
  std::fflush(nullptr);
  std::_Exit(87);
}

void copy_text(const std::string& text, char* to, int size) {
  if (size > 0) to[text.copy(to, static_cast<size_t>(size) - 1)] = 0;
}

DeviceState* find_device(World& world, Ordinal number) {
  const bool known = number >= 0 && static_cast<size_t>(number) < world.devices.size();
  return known ? world.devices[static_cast<size_t>(number)].get() : nullptr;
}

int attribute_of(const tenon::device::Description& d, int attribute) {
  constexpr int kBusBits = 512;
  switch (attribute) {
    case 1:
      return 1024;  // threads of a CTA
    case 8:
      return 48 << 10;  // shared memory of a CTA without asking
    case 13:
      return d.clock_mhz > 0 ? d.clock_mhz * 1000 : -1;
    case 16:
      return d.sm_count;
    case 36:
      return static_cast<int>(d.memory_gb_s * 1e6 / (2 * (kBusBits / 8)));
    case 37:
      return kBusBits;
    case 38:
      return static_cast<int>(d.l2_bytes);
    case 75:
      return d.compute_major;
    case 76:
      return d.compute_minor;
    case 97:
      return static_cast<int>(d.shared_bytes);
    default:
      return -1;
  }
}

}  // namespace

namespace tenon::stub {

// CUDA's own exit handler has run, or this is the child of a fork: a real driver would hang or
// crash, which no test could tell from anything else.
void refuse_out_of_time(const char* function) {
  const pid_t initialized_by = owner;
  if (!exited && (initialized_by == 0 || initialized_by == getpid())) return;
  std::fprintf(stderr, "stub driver: %s called %s\n", function,
               exited ? "after the driver was shut down" : "in the child of a fork");
  std::_Exit(86);
}

}  // namespace tenon::stub

TENON_STUB_EXPORT Result cuInit(unsigned) {
  return call(__func__, kNothing, [](World& world) -> Result {
    if (world.script.devices <= 0) return kNoDevice;
    if (world.initialized) return kSuccess;
    world.initialized = true;
    world.make_devices();
    owner = getpid();
    std::atexit(end_of_process);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuDriverGetVersion(int* version) {
  return call(__func__, kNothing, [&](World& world) -> Result {
    *version = world.script.driver_version;
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuGetErrorName(Result result, const char** text) {
  const Error* error = find_error(result);
  *text = error == nullptr ? nullptr : error->name;
  return error == nullptr ? kInvalidValue : kSuccess;
}

TENON_STUB_EXPORT Result cuGetErrorString(Result result, const char** text) {
  const Error* error = find_error(result);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? kInvalidValue : kSuccess;
}

TENON_STUB_EXPORT Result cuDeviceGetCount(int* count) {
  return call(__func__, kInit, [&](World& world) -> Result {
    *count = static_cast<int>(world.devices.size());
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuDeviceGet(Ordinal* device, int number) {
  return call(__func__, kInit, [&](World& world) -> Result {
    if (find_device(world, number) == nullptr) return kInvalidDevice;
    *device = number;
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuDeviceGetName(char* name, int size, Ordinal number) {
  return call(__func__, kInit, [&](World& world) -> Result {
    DeviceState* device = find_device(world, number);
    if (device == nullptr) return kInvalidDevice;
    copy_text(device->description.name, name, size);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuDeviceTotalMem_v2(size_t* bytes, Ordinal number) {
  return call(__func__, kInit, [&](World& world) -> Result {
    DeviceState* device = find_device(world, number);
    if (device == nullptr) return kInvalidDevice;
    *bytes = static_cast<size_t>(device->description.memory_bytes);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuDeviceGetAttribute(int* value, int attribute, Ordinal number) {
  return call(__func__, kInit, [&](World& world) -> Result {
    DeviceState* device = find_device(world, number);
    if (device == nullptr) return kInvalidDevice;
    *value = attribute_of(device->description, attribute);
    return *value < 0 ? kInvalidValue : kSuccess;
  });
}

TENON_STUB_EXPORT Result cuDeviceGetPCIBusId(char* text, int size, Ordinal number) {
  return call(__func__, kInit, [&](World& world) -> Result {
    DeviceState* device = find_device(world, number);
    if (device == nullptr) return kInvalidDevice;
    copy_text(device->description.pci_bus_id, text, size);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuDevicePrimaryCtxRetain(ContextHandle* context, Ordinal number) {
  return call(__func__, kInit, [&](World& world) -> Result {
    DeviceState* device = find_device(world, number);
    if (device == nullptr) return kInvalidDevice;
    ++device->retained;
    *context = reinterpret_cast<ContextHandle>(device);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuDevicePrimaryCtxRelease_v2(Ordinal number) {
  return call(__func__, kInit, [&](World& world) -> Result {
    DeviceState* device = find_device(world, number);
    if (device == nullptr) return kInvalidDevice;
    if (device->retained == 0) {
      world.report("cuDevicePrimaryCtxRelease: the context was released already");
      return kInvalidContext;
    }
    if (--device->retained == 0) {
      if (const std::string leaks = world.alive(number); !leaks.empty()) {
        world.report(fmt::format("leaked with the context of device {}: {}", number, leaks));
      }
    }
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuCtxSetCurrent(ContextHandle context) {
  return call(__func__, kInit, [&](World&) -> Result {
    set_current_device(reinterpret_cast<DeviceState*>(context));
    return kSuccess;
  });
}
