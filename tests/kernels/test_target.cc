#include "tests/kernels/test_target.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "base/error.h"
#include "kernels/build_program.h"
#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "kernels/running/device_executable.h"

namespace tenon::kernels {
namespace {

enum class Target { kHost, kEmulate, kGpu };

Target target() {
  const char* wanted = std::getenv("TENON_TEST_TARGET");
  const std::string name = wanted == nullptr ? "host" : wanted;
  if (name == "host") return Target::kHost;
  if (name == "emulate") return Target::kEmulate;
  if (name == "gpu") return Target::kGpu;
  throw UserError("TENON_TEST_TARGET is '" + name + "'; one of: host, emulate, gpu");
}

// Kept to the end of the process: tests make hundreds of executables.
const std::shared_ptr<device::Device>& test_device() {
  static const auto* opened = new std::shared_ptr<device::Device>(device::Device::open(0));
  return *opened;
}

// A GPU runs what is made for older ones, too: TENON_TEST_ARCH=sm_80 tests their kernels on it.
void take_wanted_arch(codegen::GpuTarget& target) {
  const char* wanted = std::getenv("TENON_TEST_ARCH");
  if (wanted == nullptr) return;
  const codegen::GpuTarget named = device::named_description(wanted).target();
  target.arch = named.arch;
  target.shared_bytes = std::min(target.shared_bytes, named.shared_bytes);
}

class HostMemory final : public TestMemory {
 public:
  explicit HostMemory(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  void* data() override { return bytes_.data(); }
  std::vector<std::byte> read() override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class DeviceMemory final : public TestMemory {
 public:
  explicit DeviceMemory(const std::vector<std::byte>& bytes)
      : buffer_(test_device(), bytes.size(), "a tensor of a test") {
    device::Stream stream(test_device());
    stream.copy(buffer_.address(), reinterpret_cast<device::Address>(bytes.data()), bytes.size());
    stream.synchronize();
  }
  void* data() override { return reinterpret_cast<void*>(buffer_.address()); }
  std::vector<std::byte> read() override {
    std::vector<std::byte> bytes(buffer_.bytes());
    device::Stream stream(test_device());
    stream.copy(reinterpret_cast<device::Address>(bytes.data()), buffer_.address(), bytes.size());
    stream.synchronize();
    return bytes;
  }

 private:
  device::Buffer buffer_;
};

std::unique_ptr<TestMemory> make(std::vector<std::byte> bytes) {
  bytes.resize(bytes.size() + TestMemory::kGuard, TestMemory::kPoison);
  if (target() == Target::kGpu) return std::make_unique<DeviceMemory>(bytes);
  return std::make_unique<HostMemory>(std::move(bytes));
}

}  // namespace

Settings test_settings() {
  Settings settings;
  settings.host = codegen::detect_host();
  settings.host.threads = 4;
  if (target() == Target::kEmulate) {
    settings.gpu = codegen::GpuTarget{};
    settings.gpu->sm_count = 2;
    settings.gpu->pipelines = true;
    settings.emulate = true;
  }
  if (target() == Target::kGpu) {
    settings.gpu = test_device()->description().target();
    settings.cudnn = true;
    settings.device_ordinal = 0;
  }
  if (settings.gpu) take_wanted_arch(*settings.gpu);
  return settings;
}

int64_t longest_heads() {
  constexpr int64_t kForLongOnes = 200 << 10;
  const Settings settings = test_settings();
  return settings.gpu && settings.gpu->shared_bytes < kForLongOnes ? 128 : 256;
}

std::unique_ptr<Executable> build_for_test(const ir::Graph& fused, const Settings& settings) {
  if (target() != Target::kGpu) return build_on_host(fused, settings);
  return build_on_device(fused, settings, test_device(), {});
}

std::unique_ptr<TestMemory> TestMemory::holding(const std::vector<std::byte>& bytes) {
  return make(bytes);
}

std::unique_ptr<TestMemory> TestMemory::poisoned(size_t bytes) {
  return make(std::vector<std::byte>(bytes, kPoison));
}

}  // namespace tenon::kernels
