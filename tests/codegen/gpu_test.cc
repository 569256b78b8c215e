// The sample kernels on a GPU, against the same kernels on the host.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "base/convert.h"
#include "base/error.h"
#include "codegen/compile.h"
#include "tests/codegen/gpu_samples.h"
#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

// As much of the driver as running a kernel takes: this layer stands below kernels/device.
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

  void run(const GpuCode& code, int64_t tasks, const std::vector<int64_t>& indices,
           const Kernel& kernel, std::vector<std::vector<uint64_t>>& buffers) {
    void *module = nullptr, *function = nullptr;
    must("load", call<int>("cuModuleLoadData", &module, code.ptx.c_str()));
    must("find", call<int>("cuModuleGetFunction", &function, module, code.entry.c_str()));
    must("shared",
         call<int>("cuFuncSetAttribute", function, 8, static_cast<int>(code.shared_bytes)));
    std::vector<uint64_t> arguments;
    std::vector<uint64_t> addresses;
    size_t next_buffer = 0, next_index = 0;
    for (const Parameter& parameter : kernel.parameters) {
      if (parameter.type.kind == Type::Kind::kIndex) {
        arguments.push_back(static_cast<uint64_t>(indices[next_index++]));
        continue;
      }
      auto& content = buffers[next_buffer++];
      uint64_t address = 0;
      must("allocate", call<int>("cuMemAlloc_v2", &address, content.size() * 8));
      must("copy", call<int>("cuMemcpyHtoD_v2", address, content.data(), content.size() * 8));
      arguments.push_back(address);
      addresses.push_back(address);
    }
    std::vector<void*> pointers;
    for (uint64_t& argument : arguments) pointers.push_back(&argument);
    must("launch", call<int>("cuLaunchKernel", function, static_cast<unsigned>(tasks), 1u, 1u,
                             static_cast<unsigned>(code.threads), 1u, 1u,
                             static_cast<unsigned>(code.shared_bytes), static_cast<void*>(nullptr),
                             pointers.data(), static_cast<void**>(nullptr)));
    must("finish", call<int>("cuCtxSynchronize"));
    for (size_t i = 0; i < addresses.size(); ++i) {
      must("copy back",
           call<int>("cuMemcpyDtoH_v2", buffers[i].data(), addresses[i], buffers[i].size() * 8));
      call<int>("cuMemFree_v2", addresses[i]);
    }
    call<int>("cuModuleUnload", module);
  }

  bool present = false;
  GpuTarget target;

 private:
  static void must(const char* what, int result) {
    if (result != 0) throw InternalError(std::string(what) + " failed: " + std::to_string(result));
  }
  void* library_ = nullptr;
};

Gpu& gpu() {
  static Gpu gpu;
  return gpu;
}

// Empty where they agree.
std::string difference(const Sample& sample, const std::vector<std::vector<uint64_t>>& expected,
                       const std::vector<std::vector<uint64_t>>& got) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const SampleBuffer& buffer = sample.buffers[i];
    double largest = 0;
    for (int64_t e = 0; e < buffer.elements; ++e) {
      double value = load_element(buffer.dtype, expected[i].data(), e);
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    }
    for (int64_t e = 0; e < buffer.elements; ++e) {
      double x = load_element(buffer.dtype, expected[i].data(), e);
      double y = load_element(buffer.dtype, got[i].data(), e);
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      if (std::fabs(x - y) <= sample.tolerance * largest) continue;
      return "buffer " + std::to_string(i) + " element " + std::to_string(e) + ": host " +
             std::to_string(x) + ", GPU " + std::to_string(y);
    }
  }
  return "";
}

struct Compiled {
  std::vector<std::vector<uint64_t>> expected;  // what the host makes of the buffers
  GpuCode code;
  std::string error;
};

Compiled compile(const Sample& sample) {
  Compiled out;
  out.expected = sample_contents(sample);
  std::vector<void*> pointers;
  for (auto& content : out.expected) pointers.push_back(content.data());
  try {
    HostKernel host(sample.kernel);
    host(pointers, sample.indices, sample.tasks);
    out.code = compile_gpu(sample.kernel, sample.threads, gpu().target);
  } catch (const std::exception& error) {
    out.error = error.what();
  }
  return out;
}

void compare(const std::vector<Sample>& samples) {
  if (!gpu().present) GTEST_SKIP() << "no NVIDIA GPU or no driver (libcuda.so.1)";
  std::vector<Compiled> compiled(samples.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
    threads.emplace_back([&] {
      for (size_t s = next++; s < samples.size(); s = next++) compiled[s] = compile(samples[s]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t s = 0; s < samples.size(); ++s) {
    const Sample& sample = samples[s];
    ASSERT_EQ(compiled[s].error, "") << sample.name;
    auto got = sample_contents(sample);
    ASSERT_NO_THROW(gpu().run(compiled[s].code, sample.tasks, sample.indices, sample.kernel, got))
        << sample.name;
    EXPECT_EQ(difference(sample, compiled[s].expected, got), "") << sample.name;
  }
}

TEST(GpuTest, RepresentativeKernels) { compare(representative_samples()); }

TEST(GpuTest, EveryOperation) { compare(operation_samples()); }

}  // namespace
}  // namespace tenon::codegen
