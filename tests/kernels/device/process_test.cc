// What a process may meet before, beside and after the driver. Each case has a process of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/device/arena.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::device {
namespace {

using test::add_one_code;
using test::run_alone;
using test::StubDriver;
using ::testing::HasSubstr;

// The same reason wherever someone asks, and no GPU in the list.
void expect_refused(const std::string& words) {
  EXPECT_FALSE(driver().support);
  EXPECT_EQ(driver().driver, nullptr);
  EXPECT_THAT(driver().support.reason, HasSubstr(words));
  EXPECT_TRUE(Device::list().empty());
  ASSERT_EQ(Device::left_out().size(), 1u);
  EXPECT_EQ(Device::left_out()[0], driver().support.reason);
  try {
    Device::open(0);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), driver().support.reason);
  }
}

TEST(ProcessTest, DISABLED_NoLibrary) {
  expect_refused("no NVIDIA driver: /nowhere/libcuda.so.1 could not be loaded");
  expect_refused("Install NVIDIA's driver");
}
TEST(ProcessTest, NoDriverLibrary) {
  EXPECT_EQ(run_alone("ProcessTest.DISABLED_NoLibrary",
                      {{"TENON_DRIVER_LIBRARY", "/nowhere/libcuda.so.1"}}),
            0);
}

TEST(ProcessTest, DISABLED_NoDriver) { expect_refused("it is no CUDA driver"); }
TEST(ProcessTest, ALibraryThatIsNoDriver) {
  EXPECT_EQ(run_alone("ProcessTest.DISABLED_NoDriver", {{"TENON_DRIVER_LIBRARY", "libm.so.6"}}), 0);
}

TEST(ProcessTest, DISABLED_TooOld) {
  expect_refused("it supports CUDA 11.4, and 12.0 is needed. Update the driver");
}
TEST(ProcessTest, ADriverThatIsTooOld) {
  EXPECT_EQ(
      run_alone("ProcessTest.DISABLED_TooOld", {{"TENON_STUB_SCRIPT", "driver_version 11040"}}), 0);
}

TEST(ProcessTest, DISABLED_FunctionMissing) {
  expect_refused("(CUDA 13.0) has no function cuGraphLaunch: update it");
}
TEST(ProcessTest, ADriverThatLacksAFunction) {
  EXPECT_EQ(run_alone("ProcessTest.DISABLED_FunctionMissing",
                      {{"TENON_STUB_SCRIPT", "drop cuGraphLaunch"}}),
            0);
}

TEST(ProcessTest, DISABLED_NoDevice) {
  expect_refused("CUDA_ERROR_NO_DEVICE (100): no GPU is visible");
}
TEST(ProcessTest, ADriverWithoutAGpu) {
  EXPECT_EQ(run_alone("ProcessTest.DISABLED_NoDevice", {{"TENON_STUB_SCRIPT", "devices 0"}}), 0);
}

TEST(ProcessTest, DISABLED_Mismatch) { expect_refused("reboot after a driver update"); }
TEST(ProcessTest, ADriverThatDoesNotFitTheKernelModule) {
  EXPECT_EQ(
      run_alone("ProcessTest.DISABLED_Mismatch", {{"TENON_STUB_SCRIPT", "fail cuInit 1 803"}}), 0);
}

TEST(ProcessTest, DISABLED_ManyDevices) {
  const std::vector<Description> found = Device::list();
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0].arch, "sm_80");
  EXPECT_EQ(found[1].arch, "sm_120a");
  EXPECT_EQ(found[1].ordinal, 2);
  EXPECT_EQ(found[2].arch, "sm_90") << "newer than we know";
  EXPECT_TRUE(found[2].forward);
  EXPECT_EQ(found[3].arch, "sm_80") << "an Ampere or Ada that we do not know";
  EXPECT_TRUE(found[3].forward);
  EXPECT_EQ(found[4].arch, "sm_103a");
  EXPECT_EQ(found[4].pci_bus_id, "0000:15:00.0");
  ASSERT_EQ(Device::left_out().size(), 1u);
  EXPECT_THAT(Device::left_out()[0], HasSubstr("GPU 1 (Stub GPU 1) has compute capability 7.5"));
  try {
    Device::open(1);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), Device::left_out()[0]);
  }
  const StubDriver stub;
  EXPECT_EQ(Device::open(3)->description().compute_major, 13);
}
TEST(ProcessTest, DevicesOfEveryAge) {
  EXPECT_EQ(run_alone("ProcessTest.DISABLED_ManyDevices",
                      {{"TENON_STUB_SCRIPT", "devices 6; arch 8.0 7.5 12.0 13.0 8.8 10.3"}}),
            0);
}

TEST(ProcessTest, DISABLED_ThreadsWithDevicesOfTheirOwn) {
  StubDriver stub;
  auto first = Device::open(0), second = Device::open(1);
  Stream on_first(first), on_second(second);
  const Buffer x(first, 64, "x"), y(second, 64, "y");
  // Every call selects its device: the stub refuses a stream of a device that is not current.
  on_first.fill(x.address(), 1, 64);
  on_second.fill(y.address(), 1, 64);
  on_first.fill(x.address(), 2, 64);
  const auto kernel = second->load(add_one_code());
  const uint64_t arguments[] = {x.address(), y.address(), 4};
  EXPECT_THROW(on_second.launch(*kernel, 1, arguments), UserError);
  EXPECT_THAT(stub.take_reports(), HasSubstr("argument %x is memory of device 0"));
  second->make_current();
  EXPECT_NE(second->driver().stream_synchronize(on_first.handle()), kSuccess);
  EXPECT_THAT(stub.take_reports(),
              HasSubstr("cuStreamSynchronize on a stream of device 0 while device 1 is current"));
}
TEST(ProcessTest, TwoDevicesAreNotMixedUp) {
  EXPECT_EQ(run_alone("ProcessTest.DISABLED_ThreadsWithDevicesOfTheirOwn",
                      {{"TENON_STUB_SCRIPT", "devices 2"}}),
            0);
}

// The stub ends the process with 86 when it is called where CUDA must not be.
TEST(ProcessTest, DISABLED_Fork) {
  StubDriver stub;
  auto device = Device::open(0);
  auto stream = std::make_unique<Stream>(device);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    bool refused = !driver().support && Device::list().empty();
    try {
      stream->synchronize();
      refused = false;
    } catch (const UserError& error) {
      refused = refused && std::string(error.what()).find("spawn") != std::string::npos;
    }
    stream.reset();
    device.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_NO_THROW(stream->synchronize()) << "the parent is not disturbed";
}
TEST(ProcessTest, AChildOfAForkGetsAnErrorAndDoesNotHang) {
  EXPECT_EQ(run_alone("ProcessTest.DISABLED_Fork"), 0);
}

struct Everything {
  std::shared_ptr<Device> device = Device::open(0);
  Stream stream{device};
  Event event{device};
  std::unique_ptr<Arena> arena = Arena::make(device, MemoryKind::kDevice);
  Buffer buffer{device, 100, "a test"};
  std::shared_ptr<const LoadedKernel> kernel = device->load(add_one_code());
};

// Made before the driver is loaded, so destroyed after the driver's own exit handlers.
std::unique_ptr<Everything>& held_until_the_end() {
  static std::unique_ptr<Everything> everything;
  return everything;
}

TEST(ProcessTest, DISABLED_ExitWithAFinding) {
  auto device = Device::open(0);
  device->make_current();
  EXPECT_NE(device->driver().release(4096), kSuccess);
}
TEST(ProcessTest, AStrictStubEndsAProcessThatItFoundFaultWith) {
  EXPECT_EQ(run_alone("ProcessTest.DISABLED_ExitWithAFinding"), 0);
  EXPECT_EQ(run_alone("ProcessTest.DISABLED_ExitWithAFinding", {{"TENON_STUB_STRICT", "1"}}), 87);
}

TEST(ProcessTest, DISABLED_ExitWithLiveObjects) {
  held_until_the_end();
  held_until_the_end() = std::make_unique<Everything>();
  held_until_the_end()->arena->allocate(100, held_until_the_end()->stream.handle());
  std::exit(0);
}
TEST(ProcessTest, ExitWithLiveObjectsIsQuiet) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run_alone("ProcessTest.DISABLED_ExitWithLiveObjects"), 0);
  }
}

}  // namespace
}  // namespace tenon::device
