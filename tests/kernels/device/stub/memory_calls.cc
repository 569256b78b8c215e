// Memory, copies and fills.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/kernels/device/stub/exports.h"
#include "tests/kernels/device/stub/world.h"

using namespace tenon::stub;
using tenon::device::IpcHandle;
using tenon::device::StreamHandle;

namespace {

bool is_pending(const World& world, Address base) {
  for (const auto& [stream, queue] : world.pending) {
    for (const Pending& pending : queue) {
      if (std::ranges::count(pending.work.accesses, base, &Access::base) > 0) return true;
    }
  }
  return false;
}

Result release(World& world, const char* function, Address base, bool pinned) {
  const Allocation* found = world.memory.find(base);
  if (found == nullptr || found->base != base || found->pinned != pinned) {
    world.report(fmt::format("{}: it points to {}", function,
                             found == nullptr ? world.memory.describe(base)
                                              : "the inside of an allocation or another kind"));
    return kInvalidValue;
  }
  if (pinned && is_pending(world, base)) {
    world.report(fmt::format("{}: work that was not waited for uses it", function));
  }
  finish_everything(world);
  if (world.memory.overrun(*found)) {
    world.report(fmt::format("{}: something wrote past the end of an allocation of {} bytes",
                             function, found->bytes));
  }
  if (!pinned) {
    world.devices[static_cast<size_t>(found->device)]->used -= found->bytes;
    // cuMemFree waits for all that the device is doing.
    const int device = found->device;
    for (const void* handle : world.streams.live()) {
      const auto* stream = static_cast<const Stream*>(handle);
      if (stream->device == device) join(world.host, stream->clock);
    }
  }
  world.history.forget(base);
  world.memory.release(base);
  return kSuccess;
}

// One side of a copy: pageable host memory is nobody's business, the GPU's memory is.
bool add_side(World& world, Work& work, const char* what, Address address, size_t bytes,
              bool writes) {
  if (!world.memory.contains(address)) {
    work.at_once = true;
    return true;
  }
  const Allocation* allocation = audit(world, work.name, what, address, bytes);
  if (allocation == nullptr) return false;
  work.accesses.push_back({allocation->base, address, bytes, writes});
  return true;
}

}  // namespace

TENON_STUB_EXPORT Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  return call(__func__, kContext, [&](World&) -> Result {
    const DeviceState& device = current_device();
    *free = device.limit - std::min(device.limit, device.used);
    *total = static_cast<size_t>(device.description.memory_bytes);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuMemAlloc_v2(Address* address, size_t bytes) {
  return call(__func__, kContext | kNoCapture, [&](World& world) -> Result {
    DeviceState& device = current_device();
    if (bytes == 0) return kInvalidValue;
    if (device.used + bytes > device.limit) return kOutOfMemory;
    const Allocation* allocation = world.memory.allocate(bytes, device.number, false);
    if (allocation == nullptr) return kOutOfMemory;
    device.used += bytes;
    *address = allocation->base;
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuMemFree_v2(Address address) {
  return call(__func__, kContext | kNoCapture,
              [&](World& world) { return release(world, "cuMemFree", address, false); });
}

TENON_STUB_EXPORT Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  return call(__func__, kContext | kNoCapture, [&](World& world) -> Result {
    if (bytes == 0) return kInvalidValue;
    const Allocation* allocation = world.memory.allocate(bytes, current_device().number, true);
    if (allocation == nullptr) return kOutOfMemory;
    *memory = reinterpret_cast<void*>(allocation->base);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuMemFreeHost(void* memory) {
  return call(__func__, kContext | kNoCapture, [&](World& world) {
    return release(world, "cuMemFreeHost", reinterpret_cast<Address>(memory), true);
  });
}

// Processes that share memory are threads of this one: a handle is the address.
TENON_STUB_EXPORT Result cuIpcGetMemHandle(IpcHandle* handle, Address address) {
  return call(__func__, kContext, [&](World& world) -> Result {
    const Allocation* found = world.memory.find(address);
    if (found == nullptr || found->base != address || found->pinned) return kInvalidValue;
    std::memcpy(handle->bytes, &address, sizeof(address));
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned) {
  return call(__func__, kContext | kNoCapture, [&](World& world) -> Result {
    Address named = 0;
    std::memcpy(&named, handle.bytes, sizeof(named));
    if (world.memory.find(named) == nullptr) return kInvalidValue;
    world.mapped.insert(named);
    *address = named;
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuIpcCloseMemHandle(Address address) {
  return call(__func__, kContext | kNoCapture, [&](World& world) -> Result {
    const auto found = world.mapped.find(address);
    if (found == world.mapped.end()) {
      world.report("cuIpcCloseMemHandle: nobody mapped it");
      return kInvalidValue;
    }
    world.mapped.erase(found);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuPointerGetAttribute(void* data, int attribute, Address address) {
  constexpr int kMemoryType = 2, kDeviceOrdinal = 9;
  constexpr unsigned kHost = 1, kDevice = 2;
  return call(__func__, kContext, [&](World& world) -> Result {
    const Allocation* allocation = world.memory.find(address);
    if (allocation == nullptr) return kInvalidValue;
    if (attribute == kMemoryType) {
      *static_cast<unsigned*>(data) = allocation->pinned ? kHost : kDevice;
    } else if (attribute == kDeviceOrdinal) {
      *static_cast<int*>(data) = allocation->device;
    } else {
      return kInvalidValue;
    }
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuMemcpyAsync(Address to, Address from, size_t bytes,
                                       StreamHandle handle) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    Stream* stream = find_stream(world, handle, function);
    if (stream == nullptr) return kInvalidHandle;
    Work work;
    work.name = fmt::format("a copy of {} bytes", bytes);
    if (!add_side(world, work, "its source", from, bytes, false) ||
        !add_side(world, work, "its target", to, bytes, true)) {
      return kInvalidValue;
    }
    work.run = [=](tenon::codegen::LaunchMemory*) {
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    };
    return enqueue(world, *stream, std::move(work));
  });
}

TENON_STUB_EXPORT Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes,
                                         StreamHandle handle) {
  const char* const function = __func__;
  return call(function, kContext, [&](World& world) -> Result {
    Stream* stream = find_stream(world, handle, function);
    if (stream == nullptr) return kInvalidHandle;
    Work work;
    work.name = fmt::format("a fill of {} bytes", bytes);
    const Allocation* allocation = audit(world, work.name, "its target", to, bytes);
    if (allocation == nullptr) return kInvalidValue;
    work.accesses.push_back({allocation->base, to, bytes, true});
    work.run = [=](tenon::codegen::LaunchMemory*) {
      std::memset(reinterpret_cast<void*>(to), value, bytes);
    };
    return enqueue(world, *stream, std::move(work));
  });
}
