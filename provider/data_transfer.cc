#include "provider/data_transfer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "provider/allocator.h"
#include "provider/api.h"
#include "provider/guard.h"

namespace tenon::provider {
namespace {

const OrtEpApi& ep_api() { return *runtime().ep; }

bool is_gpu(const OrtMemoryDevice& memory) {
  // Runtimes without a CUDA build call the GPU of a torch pointer nobody's: vendor 0.
  const uint32_t vendor = ep_api().MemoryDevice_GetVendorId(&memory);
  return ep_api().MemoryDevice_GetDeviceType(&memory) == OrtMemoryInfoDeviceType_GPU &&
         (vendor == kNvidia || vendor == 0);
}

bool is_cpu(const OrtMemoryDevice& memory) {
  return ep_api().MemoryDevice_GetDeviceType(&memory) == OrtMemoryInfoDeviceType_CPU;
}

device::Address address(const void* data) { return reinterpret_cast<device::Address>(data); }

}  // namespace

int ordinal_of(const OrtMemoryDevice& a, const OrtMemoryDevice& b) {
  for (const OrtMemoryDevice* memory : {&a, &b}) {
    if (is_gpu(*memory)) return static_cast<int>(ep_api().MemoryDevice_GetDeviceId(memory));
  }
  return -1;
}

void copy_tensor(const OrtValue& from, OrtValue& to, device::Stream& stream) {
  size_t bytes = 0, room = 0;
  check(runtime().api->GetTensorSizeInBytes(&from, &bytes));
  check(runtime().api->GetTensorSizeInBytes(&to, &room));
  if (bytes != room) {
    throw InternalError(fmt::format("a copy of {} bytes into {} was asked for", bytes, room));
  }
  if (bytes == 0) return;
  const void* source = nullptr;
  void* target = nullptr;
  check(runtime().api->GetTensorData(&from, &source));
  check(runtime().api->GetTensorMutableData(&to, &target));
  if (source == nullptr || target == nullptr) {
    throw device::OutOfMemory(
        fmt::format("a tensor of {} bytes cannot be copied: {}", bytes, allocation_failure()));
  }
  stream.copy(address(target), address(source), bytes);
}

DataTransfer::DataTransfer(std::span<const std::unique_ptr<Gpu>> gpus)
    : OrtDataTransferImpl{}, gpus_(gpus) {
  ort_version_supported = runtime().version;
  Release = [](OrtDataTransferImpl* it) noexcept { delete static_cast<DataTransfer*>(it); };
  CanCopy = [](const OrtDataTransferImpl* it, const OrtMemoryDevice* from,
               const OrtMemoryDevice* to) noexcept {
    return static_cast<const DataTransfer*>(it)->can_copy(*from, *to);
  };
  CopyTensors = [](OrtDataTransferImpl* it, const OrtValue** from, OrtValue** to,
                   OrtSyncStream** streams, size_t count) noexcept {
    return guarded([&] {
      for (size_t i = 0; i < count; ++i) {
        static_cast<DataTransfer*>(it)->copy(*from[i], *to[i],
                                             streams != nullptr ? streams[i] : nullptr);
      }
    });
  };
}

bool DataTransfer::can_copy(const OrtMemoryDevice& from, const OrtMemoryDevice& to) const {
  const auto known = [&](const OrtMemoryDevice& memory) {
    const auto id = static_cast<int>(ep_api().MemoryDevice_GetDeviceId(&memory));
    return is_gpu(memory) && std::ranges::any_of(gpus_, [&](const auto& gpu) {
             return gpu->description.ordinal == id;
           });
  };
  return (known(from) && (known(to) || is_cpu(to))) || (is_cpu(from) && known(to));
}

void DataTransfer::copy(const OrtValue& from, OrtValue& to, OrtSyncStream* stream) {
  const int ordinal =
      ordinal_of(*ep_api().Value_GetMemoryDevice(&from), *ep_api().Value_GetMemoryDevice(&to));
  if (stream != nullptr) {
    void* handle = runtime().api->SyncStream_GetHandle(stream);
    device::Stream borrowed(device::Device::open(ordinal),
                            static_cast<device::StreamHandle>(handle));
    return copy_tensor(from, to, borrowed);
  }
  const std::lock_guard lock(mutex_);
  device::Stream& own = own_stream(ordinal);
  device::Device::open(ordinal)->wait_for_default_stream();  // as cudaMemcpy does
  copy_tensor(from, to, own);
  own.synchronize();
}

device::Stream& DataTransfer::own_stream(int ordinal) {
  std::unique_ptr<device::Stream>& stream = streams_[ordinal];
  if (!stream) stream = std::make_unique<device::Stream>(device::Device::open(ordinal));
  return *stream;
}

}  // namespace tenon::provider
