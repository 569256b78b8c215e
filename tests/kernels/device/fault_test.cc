// Faults while work goes on: each is an exception with a reason, and what comes after still works.
// Losses last as long as the process, so each has a process of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "kernels/device/arena.h"
#include "kernels/device/tensor_map.h"
#include "kernels/device/uploader.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::device {
namespace {

using test::add_one_code;
using test::kBoxColumns;
using test::kBoxRows;
using test::run_alone;
using test::StubDriver;
using test::tma_copy_code;
using ::testing::HasSubstr;

template <typename Error>
std::string message(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// Everything that this folder offers, once.
void whole_life() {
  auto device = Device::open(0);
  Stream stream(device);
  Event event(device);
  const auto arena = Arena::make(device, MemoryKind::kDevice);
  static const codegen::GpuCode code = add_one_code();
  const auto kernel = device->load(code);
  const Buffer x(device, 256, "x");
  const std::vector<float> zeros(64);
  {
    const auto uploader = Uploader::make(device);
    uploader->upload(x.address(), zeros.data(), x.bytes());
    uploader->finish();
  }
  void* y = arena->allocate(256, stream.handle());
  const auto fetcher = device->load(tma_copy_code());
  const uint64_t fetched[] = {x.address(), reinterpret_cast<uint64_t>(y), 2};
  const TensorMap descriptor = encode_tensor_map(
      *device, {x.address(), 4, 2, kBoxColumns, kBoxColumns, kBoxRows, kBoxColumns}, "x");
  stream.launch(*fetcher, 1, fetched, {&descriptor, 1});
  const uint64_t arguments[] = {x.address(), reinterpret_cast<uint64_t>(y), 64};
  stream.launch(*kernel, 1, arguments);
  stream.record(event);
  event.synchronize();
  stream.begin_capture();
  try {
    stream.launch(*kernel, 1, arguments);
  } catch (...) {
    GraphHandle broken = nullptr;
    if (device->try_make_current() &&
        device->driver().end_capture(stream.handle(), &broken) == kSuccess) {
      device->note(device->driver().graph_destroy(broken));
    }
    throw;
  }
  const Graph graph(device, stream.end_capture());
  stream.launch(graph);
  std::vector<float> result(64);
  stream.copy(reinterpret_cast<Address>(result.data()), reinterpret_cast<Address>(y), 256);
  stream.synchronize();
  arena->release(y);
  arena->forget(stream.handle());
  arena->shrink();
  EXPECT_EQ(result[63], 1.0f);
}

TEST(FaultTest, AWholeLifeLeavesNothing) {
  const StubDriver stub;
  whole_life();
  EXPECT_EQ(stub.leaks(), "");
}

TEST(FaultTest, AWholeLifeWithWorkThatIsDoneLate) {
  const StubDriver stub("lazy");
  whole_life();
  EXPECT_EQ(stub.leaks(), "");
}

TEST(FaultTest, ManyLivesLeaveNothing) {
  const StubDriver stub;
  for (int i = 0; i < 300; ++i) whole_life();
  EXPECT_EQ(stub.leaks(), "");
}

// The nth call of every function fails once: an error or a way round it, no leak, and the next life
// is untouched.
TEST(FaultTest, EveryCallMayFailOnce) {
  StubDriver stub;
  whole_life();
  const Driver* names = driver().driver;
  ASSERT_NE(names, nullptr);
  constexpr const char* kFunctions[] = {
#define TENON_NAME(member, symbol, parameters) symbol,
      TENON_DRIVER_FUNCTIONS(TENON_NAME) TENON_OPTIONAL_DRIVER_FUNCTIONS(TENON_NAME)
#undef TENON_NAME
  };
  int failed = 0, survived = 0;
  for (const std::string function : kFunctions) {
    StubDriver counting;
    whole_life();
    const long calls = counting.calls(function);
    for (long n = 1; n <= calls; ++n) {
      // A failed clean-up leaks what it was to clean; its own tests are elsewhere.
      const bool cleans = function.find("Destroy") != std::string::npos ||
                          function.find("Free") != std::string::npos ||
                          function.find("Release") != std::string::npos ||
                          function.find("Unload") != std::string::npos ||
                          function == "cuCtxSetCurrent" || function == "cuStreamEndCapture";
      if (cleans) continue;
      for (const int code : {1, 2}) {
        StubDriver one("fail " + function + " " + std::to_string(n) + " " + std::to_string(code));
        try {
          whole_life();
          ++survived;
        } catch (const UserError& error) {
          EXPECT_STRNE(error.what(), "");
          ++failed;
        }
        EXPECT_EQ(one.leaks(), "") << function << " " << n;
        one.take_reports();
        EXPECT_NO_THROW(whole_life()) << "after " << function << " " << n;
      }
    }
  }
  EXPECT_GT(failed, 40);
  EXPECT_GT(survived, 4);
}

TEST(FaultTest, AFailedLaunchNamesTheKernelAndLeavesTheDeviceUsable) {
  StubDriver stub("fail cuLaunchKernel 1 701");
  EXPECT_THAT(message<UserError>(whole_life),
              HasSubstr("launch kernel 'add_one' with 1 CTAs of 64 threads"));
  whole_life();
}

TEST(FaultTest, ACaptureThatIsRefusedIsAnError) {
  StubDriver stub("fail cuStreamBeginCapture_v2 1 900");
  EXPECT_THAT(message<UserError>(whole_life), HasSubstr("begin to capture a stream"));
  whole_life();
}

TEST(FaultTest, AStreamThatNeverEndsMeetsItsDeadline) {
  StubDriver stub;
  auto device = Device::open(0);
  stub.script("hang_stream 1");
  Stream stream(device);
  const auto kernel = device->load(add_one_code());
  const Buffer x(device, 256, "x");
  const uint64_t arguments[] = {x.address(), x.address(), 64};
  stream.launch(*kernel, 1, arguments);
  const auto begin = std::chrono::steady_clock::now();
  const std::string words =
      message<UserError>([&] { stream.synchronize(std::chrono::milliseconds(50)); });
  const auto waited = std::chrono::steady_clock::now() - begin;
  EXPECT_THAT(words, HasSubstr("did not finish within 50 ms"));
  EXPECT_THAT(words, HasSubstr("last work: add_one"));
  EXPECT_GE(waited, std::chrono::milliseconds(50));
  EXPECT_LT(waited, std::chrono::seconds(2));
}

TEST(LossTest, DISABLED_StickyError) {
  StubDriver stub;
  auto device = Device::open(0);
  Stream stream(device);
  Event event(device);
  const auto arena = Arena::make(device, MemoryKind::kDevice);
  const auto kernel = device->load(add_one_code());
  const Buffer x(device, 256, "x");
  void* piece = arena->allocate(100, stream.handle());
  EXPECT_EQ(device->failure(), std::nullopt);

  stub.script("sticky cuLaunchKernel 1 700; fail cuMemAlloc_v2 1+ 716");
  const uint64_t arguments[] = {x.address(), x.address(), 64};
  const std::string first = message<DeviceLost>([&] { stream.launch(*kernel, 1, arguments); });
  EXPECT_THAT(first, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS [700]"));
  EXPECT_THAT(first, HasSubstr("launch kernel 'add_one'"));
  ASSERT_TRUE(device->failure().has_value());

  const codegen::GpuCode other = add_one_code("other");
  const long calls = stub.calls();
  const auto begin = std::chrono::steady_clock::now();
  const std::function<void()> attempts[] = {
      [&] { stream.launch(*kernel, 1, arguments); },
      [&] { stream.synchronize(); },
      [&] { stream.synchronize(std::chrono::milliseconds(100)); },
      [&] { stream.copy(x.address(), x.address(), 4); },
      [&] { stream.begin_capture(); },
      [&] { event.synchronize(); },
      [&] { Buffer(device, 64, "more"); },
      [&] { device->load(other); },
      [&] { device->memory(); },
      [&] { Event another(device); },
      [&] { arena->allocate(64 << 20, stream.handle()); },
      [&] { Device::open(0); },
  };
  for (const auto& attempt : attempts) EXPECT_EQ(message<DeviceLost>(attempt), first);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(12));
  arena->release(piece);
  arena->forget(stream.handle());
  EXPECT_EQ(stub.calls(), calls) << "a lost device is not asked again";
}

TEST(LossTest, AStickyErrorIsToldAgainWithoutAskingTheDriver) {
  EXPECT_EQ(run_alone("LossTest.DISABLED_StickyError"), 0);
}

TEST(LossTest, DISABLED_TearDown) {
  StubDriver stub;
  {
    auto device = Device::open(0);
    auto stream = std::make_unique<Stream>(device);
    auto event = std::make_unique<Event>(device);
    auto arena = Arena::make(device, MemoryKind::kDevice);
    auto uploader = Uploader::make(device);
    auto kernel = device->load(add_one_code());
    const Buffer x(device, 256, "x");
    arena->allocate(100, stream->handle());
    stub.script("sticky cuStreamSynchronize 1 719");
    EXPECT_THROW(stream->synchronize(), DeviceLost);
    stub.script("hang_stream 1");
    const long calls = stub.calls();
    event.reset();
    arena.reset();
    uploader.reset();
    stream.reset();
    kernel.reset();
    device.reset();
    EXPECT_EQ(stub.calls(), calls);
  }
  EXPECT_EQ(stub.reports(), "");
}

TEST(LossTest, TearDownAfterALossCallsNothing) {
  EXPECT_EQ(run_alone("LossTest.DISABLED_TearDown"), 0);
}

TEST(LossTest, DISABLED_CleanUpFindsTheLoss) {
  StubDriver stub;
  auto device = Device::open(0);
  auto event = std::make_unique<Event>(device);
  stub.script("sticky cuEventDestroy_v2 1 999");
  event.reset();
  ASSERT_TRUE(device->failure().has_value());
  EXPECT_THAT(*device->failure(), HasSubstr("cleaning up"));
}

TEST(LossTest, ALossThatADestructorFindsIsKept) {
  EXPECT_EQ(run_alone("LossTest.DISABLED_CleanUpFindsTheLoss"), 0);
}

TEST(LossTest, DISABLED_OtherDevicesGoOn) {
  StubDriver stub("devices 2");
  auto lost = Device::open(0);
  auto healthy = Device::open(1);
  Stream broken(lost), working(healthy);
  stub.script("sticky cuStreamSynchronize 1 700");
  EXPECT_THROW(broken.synchronize(), DeviceLost);
  EXPECT_NO_THROW(working.synchronize());
  EXPECT_NO_THROW(Buffer(healthy, 64, "a test"));
}

TEST(LossTest, OtherDevicesGoOn) { EXPECT_EQ(run_alone("LossTest.DISABLED_OtherDevicesGoOn"), 0); }

TEST(LossTest, DISABLED_LaunchAfterLoss) {
  StubDriver stub;
  auto device = Device::open(0);
  Stream stream(device);
  const auto kernel = device->load(add_one_code());
  stub.script("sticky cuStreamSynchronize 1 700");
  EXPECT_EQ(device->driver().stream_synchronize(stream.handle()), 700);
  void* none[] = {nullptr};
  EXPECT_EQ(device->driver().launch(kernel->function, 1, 1, 1, 64, 1, 1, 0, stream.handle(), none,
                                    nullptr),
            700);
  EXPECT_THAT(stub.take_reports(), HasSubstr("cuLaunchKernel after the device was lost"));
}

TEST(LossTest, TheStubReportsALaunchAfterTheLoss) {
  EXPECT_EQ(run_alone("LossTest.DISABLED_LaunchAfterLoss"), 0);
}

}  // namespace
}  // namespace tenon::device
