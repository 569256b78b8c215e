#include "kernels/device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "kernels/device/stream.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::device {
namespace {

using test::add_one_code;
using test::StubDriver;
using ::testing::HasSubstr;

TEST(DeviceTest, ListsWhatTheDriverOffers) {
  const StubDriver stub;
  const std::vector<Description> found = Device::list();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].arch, "sm_90a");
  EXPECT_FALSE(found[0].forward);
  EXPECT_EQ(found[0].pci_bus_id, "0000:10:00.0");
  EXPECT_EQ(found[0].ordinal, 0);
  EXPECT_EQ(found[0].sm_count, 132);
  EXPECT_NEAR(found[0].memory_gb_s, 4800, 1);
  EXPECT_TRUE(Device::left_out().empty());
}

TEST(DeviceTest, OneObjectPerGpuAndTheContextGoesWithTheLast) {
  const StubDriver stub;
  auto first = Device::open(0);
  auto second = Device::open(0);
  EXPECT_EQ(first, second);
  EXPECT_EQ(stub.calls("cuDevicePrimaryCtxRetain"), 1);
  first.reset();
  EXPECT_EQ(stub.calls("cuDevicePrimaryCtxRelease_v2"), 0);
  second.reset();
  EXPECT_EQ(stub.calls("cuDevicePrimaryCtxRelease_v2"), 1);
  EXPECT_EQ(stub.leaks(), "");
}

TEST(DeviceTest, AGpuThatIsNotThereIsAnError) {
  const StubDriver stub;
  try {
    Device::open(4);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no GPU 4"));
    EXPECT_THAT(error.what(), HasSubstr("CUDA_VISIBLE_DEVICES"));
  }
}

TEST(DeviceTest, MemoryIsCountedAndGivenBack) {
  const StubDriver stub;
  auto device = Device::open(0);
  const size_t before = device->memory().free;
  {
    Buffer buffer(device, 1 << 20, "a test");
    EXPECT_EQ(before - device->memory().free, size_t{1} << 20);
    Buffer moved = std::move(buffer);
    EXPECT_EQ(buffer.address(), 0u);
    EXPECT_NE(moved.address(), 0u);
  }
  EXPECT_EQ(device->memory().free, before);
  EXPECT_EQ(Buffer(device, 0, "nothing").address(), 0u);
}

TEST(DeviceTest, MemoryFreedInACaptureIsFreedAfterIt) {
  StubDriver stub;
  auto device = Device::open(0);
  Stream stream(device);
  const size_t before = device->memory().free;
  Buffer buffer(device, 1 << 20, "a test");
  stream.begin_capture();
  buffer = Buffer();
  EXPECT_THROW(stream.end_capture(), UserError);
  EXPECT_THAT(stub.take_reports(), HasSubstr("cuMemFree_v2 during capture"));
  EXPECT_LT(device->memory().free, before);
  const Buffer next(device, 256, "the next");
  EXPECT_EQ(device->memory().free, before - 256);
}

TEST(DeviceTest, OutOfMemoryNamesPurposeAndSizes) {
  const StubDriver stub("free_memory 3145728");
  auto device = Device::open(0);
  try {
    Buffer(device, 12 << 20, "weight 'w1'");
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("12.0 MiB wanted for weight 'w1'"));
    EXPECT_THAT(error.what(), HasSubstr("3.0 MiB of 16.0 GiB free"));
  }
  EXPECT_NO_THROW(Buffer(device, 1 << 20, "something smaller"));
}

TEST(DeviceTest, EqualKernelsAreLoadedOnceWhileSomeoneHoldsThem) {
  const StubDriver stub;
  auto device = Device::open(0);
  auto first = device->load(add_one_code());
  auto second = device->load(add_one_code());
  EXPECT_EQ(first, second);
  EXPECT_EQ(first->name, "add_one");
  EXPECT_GT(first->registers, 0);
  EXPECT_NE(device->load(add_one_code("another")), first);
  EXPECT_EQ(stub.calls("cuModuleLoadDataEx"), 2);
  first.reset();
  second.reset();
  EXPECT_EQ(stub.calls("cuModuleUnload"), 2);
  EXPECT_EQ(stub.leaks(), "the context of device 0\n");
}

TEST(DeviceTest, MuchSharedMemoryIsAskedFor) {
  const StubDriver stub;
  auto device = Device::open(0);
  codegen::GpuCode code = add_one_code();
  code.shared_bytes = 48 << 10;
  const auto modest = device->load(code);
  EXPECT_EQ(stub.calls("cuFuncSetAttribute"), 0);
  code.ptx += "\n";  // other code
  code.shared_bytes = 100 << 10;
  const auto greedy = device->load(code);
  EXPECT_EQ(stub.calls("cuFuncSetAttribute"), 1);
  EXPECT_EQ(greedy->shared_bytes, 100 << 10);
  code.ptx += "\n";
  code.shared_bytes = 300 << 10;
  EXPECT_THROW(device->load(code), UserError);
}

TEST(DeviceTest, ConcurrentLoadsShareAndDoNotDisturbEachOther) {
  const StubDriver stub;
  auto device = Device::open(0);
  std::vector<std::shared_ptr<const LoadedKernel>> kernels(16);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kernels.size(); ++i) {
    threads.emplace_back(
        [&, i] { kernels[i] = device->load(add_one_code("kernel_" + std::to_string(i % 4))); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 4; i < kernels.size(); ++i) EXPECT_EQ(kernels[i], kernels[i % 4]);
  EXPECT_EQ(stub.calls("cuModuleLoadDataEx"), 4);
}

TEST(DeviceTest, ConcurrentOpeningGivesOneObject) {
  const StubDriver stub;
  std::vector<std::shared_ptr<Device>> devices(8);
  std::vector<std::thread> threads;
  for (auto& device : devices) threads.emplace_back([&] { device = Device::open(0); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& device : devices) EXPECT_EQ(device, devices[0]);
}

TEST(DeviceTest, CodeThatDoesNotCompileComesWithTheCompilersWords) {
  const StubDriver stub;
  auto device = Device::open(0);
  codegen::GpuCode code = add_one_code();
  code.ptx = ".version 8.0\n";
  try {
    device->load(code);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("load kernel 'add_one'"));
    EXPECT_THAT(error.what(), HasSubstr("does not begin with its tile program"));
    EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_INVALID_PTX [218]"));
  }
  EXPECT_NO_THROW(device->load(add_one_code()));
}

}  // namespace
}  // namespace tenon::device
