// The sample kernels on a GPU, against the same kernels on the host.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "base/convert.h"
#include "base/error.h"
#include "codegen/compile.h"
#include "codegen/interpret.h"
#include "tests/codegen/gpu_driver.h"
#include "tests/codegen/gpu_samples.h"
#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

Gpu& gpu() {
  static Gpu gpu;
  return gpu;
}

double last_place(DType dtype, double x) {
  bool half = dtype == DType::kF16;
  int digits = half ? 11 : dtype == DType::kBF16 ? 8 : 24, lowest = half ? -14 : -126;
  return std::ldexp(1.0, std::max(x == 0 ? lowest : std::ilogb(x), lowest) - (digits - 1));
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
      double allowed = sample.tolerance * largest;
      if (sample.ulps > 0) allowed = std::max(allowed, sample.ulps * last_place(buffer.dtype, x));
      if (std::fabs(x - y) <= allowed) continue;
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
    if (needs_interpreter(sample.kernel)) {
      interpret(sample.kernel, pointers, sample.indices, 0, sample.tasks);
    } else {
      HostKernel host(sample.kernel);
      host(pointers, sample.indices, sample.tasks);
    }
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

bool is_product(const Sample& sample) {
  return sample.name.starts_with("matmul") || sample.name.starts_with("attention");
}

TEST(GpuTest, Pipelines) { compare(pipeline_samples()); }

TEST(GpuTest, EveryOperation) {
  std::vector<Sample> samples = operation_samples();
  std::erase_if(samples, is_product);
  compare(samples);
}

TEST(GpuTest, Products) {
  std::vector<Sample> samples = operation_samples();
  std::erase_if(samples, [](const Sample& sample) { return !is_product(sample); });
  compare(samples);
}

}  // namespace
}  // namespace tenon::codegen
