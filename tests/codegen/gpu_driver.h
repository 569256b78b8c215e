// Runs PTX on the first GPU: as much of the driver as the tests of codegen/ need, since this layer
// stands below kernels/device.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/compile.h"

namespace tenon::codegen {

class Gpu {
 public:
  Gpu() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library_) return;
    int device = 0, count = 0;
    void* context = nullptr;
    if (call<int>("cuInit", 0u) || call<int>("cuDeviceGetCount", &count) || count == 0) return;
    if (call<int>("cuDeviceGet", &device, 0)) return;
    int major = 0, minor = 0;
    call<int>("cuDeviceGetAttribute", &major, 75, device);
    call<int>("cuDeviceGetAttribute", &minor, 76, device);
    target.arch = "sm_" + std::to_string(major * 10 + minor);
    for (const std::string& arch : gpu_archs()) {
      if (arch == target.arch + "a") target.arch = arch;
    }
    int shared = 0;
    call<int>("cuDeviceGetAttribute", &shared, 97, device);
    target.shared_bytes = shared;
    present = !call<int>("cuDevicePrimaryCtxRetain", &context, device) &&
              !call<int>("cuCtxSetCurrent", context);
  }

  template <typename R, typename... Args>
  R call(const char* name, Args... args) {
    auto* function = reinterpret_cast<R (*)(Args...)>(dlsym(library_, name));
    return function ? function(args...) : R(1);
  }

  // Runs the kernel over the buffers, which are copied there and back. Answers the milliseconds of
  // the fastest of `repeats` launches.
  float run(const GpuCode& code, int64_t tasks, const std::vector<int64_t>& indices,
            const Kernel& kernel, std::vector<std::vector<uint64_t>>& buffers, int repeats = 1) {
    void *module = nullptr, *function = nullptr;
    must("loading", call<int>("cuModuleLoadData", &module, code.ptx.c_str()));
    must("finding", call<int>("cuModuleGetFunction", &function, module, code.entry.c_str()));
    must("asking for shared memory",
         call<int>("cuFuncSetAttribute", function, 8, static_cast<int>(code.shared_bytes)));
    std::vector<uint64_t> arguments, addresses;
    size_t next_buffer = 0, next_index = 0;
    for (const Parameter& parameter : kernel.parameters) {
      if (parameter.type.kind == Type::Kind::kIndex) {
        arguments.push_back(static_cast<uint64_t>(indices[next_index++]));
        continue;
      }
      auto& content = buffers[next_buffer++];
      uint64_t address = 0;
      must("allocating", call<int>("cuMemAlloc_v2", &address, content.size() * 8));
      must("copying", call<int>("cuMemcpyHtoD_v2", address, content.data(), content.size() * 8));
      arguments.push_back(address);
      addresses.push_back(address);
    }
    std::vector<void*> pointers;
    for (uint64_t& argument : arguments) pointers.push_back(&argument);
    std::vector<EncodedDescriptor> descriptors;
    for (const TmaDescriptor& descriptor : code.tma_descriptors) {
      descriptors.push_back(encode(descriptor, arguments));
    }
    for (EncodedDescriptor& descriptor : descriptors) pointers.push_back(&descriptor);
    void *begin = nullptr, *end = nullptr, *stream = nullptr, **extra = nullptr;
    must("making an event", call<int>("cuEventCreate", &begin, 0u));
    must("making an event", call<int>("cuEventCreate", &end, 0u));
    float best = 0;
    for (int i = 0; i < repeats; ++i) {
      call<int>("cuEventRecord", begin, stream);
      must("launching",
           call<int>("cuLaunchKernel", function, static_cast<unsigned>(tasks), 1u, 1u,
                     static_cast<unsigned>(code.threads), 1u, 1u,
                     static_cast<unsigned>(code.shared_bytes), stream, pointers.data(), extra));
      call<int>("cuEventRecord", end, stream);
      must("running", call<int>("cuCtxSynchronize"));
      float milliseconds = 0;
      call<int>("cuEventElapsedTime", &milliseconds, begin, end);
      best = i == 0 ? milliseconds : std::min(best, milliseconds);
    }
    for (size_t i = 0; i < addresses.size(); ++i) {
      must("copying back",
           call<int>("cuMemcpyDtoH_v2", buffers[i].data(), addresses[i], buffers[i].size() * 8));
      call<int>("cuMemFree_v2", addresses[i]);
    }
    call<int>("cuModuleUnload", module);
    return best;
  }

  bool present = false;
  GpuTarget target;

 private:
  struct alignas(64) EncodedDescriptor {
    std::array<uint64_t, 16> words{};
  };

  EncodedDescriptor encode(const TmaDescriptor& descriptor,
                           const std::vector<uint64_t>& arguments) {
    auto size = [&](const TmaDescriptor::Size& of) {
      return of.parameter < 0 ? static_cast<uint64_t>(of.constant)
                              : arguments[static_cast<size_t>(of.parameter)];
    };
    constexpr int kU16 = 1, kU32 = 2, kTf32 = 11, kPromote256 = 3;
    constexpr uint64_t kPieceBytes = 128;  // units change places within so much of a row
    EncodedDescriptor out;
    const auto bytes = static_cast<uint64_t>(bit_width(descriptor.dtype) / 8);
    const auto width = static_cast<uint64_t>(descriptor.box_columns);
    const bool grouped = descriptor.groups > 0,
               pieces = descriptor.swizzled && width * bytes > kPieceBytes;
    std::array<uint64_t, 3> sizes{grouped ? width : size(descriptor.columns), size(descriptor.rows),
                                  size(descriptor.columns) / width};
    std::array<uint64_t, 2> strides{size(descriptor.stride) * bytes, width * bytes};
    std::array<uint32_t, 3> box{static_cast<uint32_t>(descriptor.box_columns),
                                static_cast<uint32_t>(descriptor.box_rows),
                                static_cast<uint32_t>(descriptor.groups)};
    if (pieces) {
      const uint64_t piece = kPieceBytes / bytes;
      sizes = {piece, size(descriptor.columns) / piece, size(descriptor.rows)};
      strides = {kPieceBytes, size(descriptor.stride) * bytes};
      box = {static_cast<uint32_t>(piece), static_cast<uint32_t>(width / piece),
             static_cast<uint32_t>(descriptor.box_rows)};
    }
    const uint64_t row_bytes = std::min(kPieceBytes, width * bytes);
    const int swizzle = !descriptor.swizzled ? 0 : row_bytes == 32 ? 1 : row_bytes == 64 ? 2 : 3;
    uint32_t steps[3] = {1, 1, 1};
    must("encoding a TMA descriptor",
         call<int>("cuTensorMapEncodeTiled", static_cast<void*>(&out),
                   descriptor.tf32 ? kTf32
                   : bytes == 2    ? kU16
                                   : kU32,
                   grouped || pieces ? 3u : 2u,
                   reinterpret_cast<void*>(arguments[static_cast<size_t>(descriptor.buffer)]),
                   static_cast<const uint64_t*>(sizes.data()),
                   static_cast<const uint64_t*>(strides.data()),
                   static_cast<const uint32_t*>(box.data()), static_cast<const uint32_t*>(steps), 0,
                   swizzle, kPromote256, 0));
    return out;
  }

  static void must(const char* what, int result) {
    if (result != 0) throw InternalError(std::string(what) + " failed: " + std::to_string(result));
  }
  void* library_ = nullptr;
};

}  // namespace tenon::codegen
