// Each check of the stub driver is tried with the mistake that it is there for: a check that
// reports nothing here would report nothing anywhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/device/stream.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::device {
namespace {

using test::add_one_code;
using test::double_in_place_code;
using test::StubDriver;
using ::testing::HasSubstr;

class StubAuditTest : public ::testing::Test {
 protected:
  void add_one(Stream& stream, Address x, Address y) {
    const uint64_t arguments[] = {x, y, 64};
    stream.launch(*kernel_, 1, arguments);
  }
  void expect_found(const std::string& words) {
    EXPECT_THAT(stub_.take_reports(), HasSubstr(words));
  }

  StubDriver stub_;
  std::shared_ptr<Device> device_ = Device::open(0);
  Stream stream_{device_}, other_{device_};
  std::shared_ptr<const LoadedKernel> kernel_ = device_->load(add_one_code());
  Buffer x_{device_, 256, "x"}, y_{device_, 256, "y"};
};

TEST_F(StubAuditTest, TooFewArguments) {
  const uint64_t arguments[] = {x_.address(), y_.address()};
  EXPECT_THROW(stream_.launch(*kernel_, 1, arguments), UserError);
  expect_found("it takes 3 arguments, got 2");
}

TEST_F(StubAuditTest, TooManyArguments) {
  const uint64_t arguments[] = {x_.address(), y_.address(), 64, 64};
  EXPECT_THROW(stream_.launch(*kernel_, 1, arguments), UserError);
  expect_found("it takes 3 arguments, got more than 3");
}

TEST_F(StubAuditTest, ArgumentsInTheWrongOrder) {
  const uint64_t arguments[] = {64, x_.address(), y_.address()};
  EXPECT_THROW(stream_.launch(*kernel_, 1, arguments), UserError);
  expect_found("argument %x points to no memory of the GPU");
}

TEST_F(StubAuditTest, HostMemoryInALaunch) {
  std::array<float, 64> host{};
  EXPECT_THROW(add_one(stream_, reinterpret_cast<Address>(host.data()), y_.address()), UserError);
  expect_found("points to no memory of the GPU");
}

TEST_F(StubAuditTest, AMisalignedPointer) {
  EXPECT_THROW(add_one(stream_, x_.address() + 2, y_.address()), UserError);
  expect_found("argument %x is not aligned to 4 bytes");
}

TEST_F(StubAuditTest, AFreedPointerInALaunch) {
  Address gone = 0;
  {
    const Buffer freed(device_, 256, "freed");
    gone = freed.address();
  }
  EXPECT_THROW(add_one(stream_, x_.address(), gone), UserError);
  expect_found("argument %y points to freed memory");
  EXPECT_THROW(stream_.copy(x_.address(), gone, 16), UserError);
  expect_found("its source points to freed memory");
}

TEST_F(StubAuditTest, AFreedPointerInAGraph) {
  auto freed = std::make_unique<Buffer>(device_, 256, "freed");
  stream_.begin_capture();
  add_one(stream_, x_.address(), freed->address());
  const Graph graph(device_, stream_.end_capture());
  freed.reset();
  EXPECT_THROW(stream_.launch(graph), UserError);
  expect_found("graph replay of kernel 'add_one': an address points to freed memory");
}

TEST_F(StubAuditTest, ACopyPastTheEnd) {
  EXPECT_THROW(stream_.copy(x_.address() + 128, y_.address(), 256), UserError);
  expect_found("its target reaches 128 bytes past an allocation of 256");
}

TEST_F(StubAuditTest, AKernelThatWritesPastTheEnd) {
  const uint64_t arguments[] = {x_.address(), y_.address(), 100};
  stream_.launch(*kernel_, 2, arguments);
  EXPECT_THAT(stub_.take_reports(), HasSubstr("wrote past the end of an allocation of 256 bytes"));
  y_ = Buffer();  // found again when it is freed
  expect_found("wrote past the end");
}

TEST_F(StubAuditTest, AReadThatDoesNotWaitForTheWrite) {
  add_one(stream_, x_.address(), y_.address());
  const Buffer z(device_, 256, "z");
  add_one(other_, y_.address(), z.address());
  expect_found("missing wait: kernel 'add_one' on stream");
}

TEST_F(StubAuditTest, AWriteThatDoesNotWaitForTheRead) {
  const Buffer z(device_, 256, "z");
  add_one(stream_, x_.address(), y_.address());
  other_.copy(x_.address(), z.address(), 256);
  expect_found("missing wait: a copy of 256 bytes on stream");
}

TEST_F(StubAuditTest, AnEventRecordedTooEarlyOrdersNothing) {
  Event early(device_);
  stream_.record(early);
  add_one(stream_, x_.address(), y_.address());
  other_.wait(early);
  other_.fill(y_.address(), 0, 256);
  expect_found("missing wait: a fill of 256 bytes");
}

TEST_F(StubAuditTest, ACopyInsideARangeThatAnotherStreamWrites) {
  stream_.fill(x_.address(), 0, 256);
  std::array<float, 4> host{};
  other_.copy(reinterpret_cast<Address>(host.data()), x_.address() + 64, sizeof(host));
  expect_found("missing wait");
}

TEST_F(StubAuditTest, ReadersNeedNotWaitForEachOther) {
  const Buffer z(device_, 256, "z");
  add_one(stream_, x_.address(), y_.address());
  add_one(other_, x_.address(), z.address());
  EXPECT_EQ(stub_.reports(), "");
}

TEST_F(StubAuditTest, WaitsOfEveryKindOrder) {
  Event event(device_);
  add_one(stream_, x_.address(), y_.address());
  stream_.synchronize();
  add_one(other_, x_.address(), y_.address());
  other_.record(event);
  event.synchronize();
  add_one(stream_, x_.address(), y_.address());
  stream_.record(event);
  EXPECT_TRUE(event.done());
  add_one(other_, x_.address(), y_.address());
  other_.synchronize(std::chrono::milliseconds(100));
  add_one(stream_, x_.address(), y_.address());
  stream_.record(event);
  other_.wait(event);
  add_one(other_, x_.address(), y_.address());
  EXPECT_EQ(stub_.reports(), "");
}

TEST_F(StubAuditTest, AMissingWaitInsideACapture) {
  Event forked(device_), joined(device_);
  stream_.begin_capture();
  stream_.record(forked);
  add_one(stream_, x_.address(), y_.address());
  other_.wait(forked);
  other_.fill(y_.address(), 0, 256);
  other_.record(joined);
  stream_.wait(joined);
  const Graph graph(device_, stream_.end_capture());
  expect_found("missing wait: a fill of 256 bytes");
}

TEST_F(StubAuditTest, AStreamThatIsNotJoinedBack) {
  Event forked(device_);
  stream_.begin_capture();
  add_one(stream_, x_.address(), y_.address());
  stream_.record(forked);
  other_.wait(forked);
  add_one(other_, x_.address(), y_.address());
  EXPECT_THROW(stream_.end_capture(), UserError);
  expect_found("not joined back");
  EXPECT_FALSE(other_.capturing());
}

// What breaks a capture: the call itself fails, and so does the end of the capture.
TEST_F(StubAuditTest, CallsThatBreakACapture) {
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"cuMemAlloc_v2 during capture", [&] { Buffer(device_, 64, "too late"); }},
      {"cuMemHostAlloc during capture", [&] { device_->allocate_pinned(64, "too late"); }},
      {"cuModuleLoadDataEx during capture", [&] { device_->load(double_in_place_code()); }},
      {"cuStreamSynchronize on a stream that is being captured", [&] { stream_.synchronize(); }},
      {"cuStreamQuery on a stream that is being captured",
       [&] { stream_.synchronize(std::chrono::milliseconds(10)); }},
  };
  for (const auto& [words, mistake] : calls) {
    stream_.begin_capture();
    EXPECT_THROW(mistake(), UserError) << words;
    EXPECT_THROW(add_one(stream_, x_.address(), y_.address()), UserError) << words;
    EXPECT_THROW(stream_.end_capture(), UserError) << words;
    expect_found(words);
  }
  stream_.begin_capture();
  y_ = Buffer();
  EXPECT_THROW(stream_.end_capture(), UserError);
  EXPECT_THAT(stub_.take_reports(), HasSubstr("cuMemFree_v2 during capture"));
}

TEST_F(StubAuditTest, ACapturedEventCannotBeAsked) {
  Event event(device_);
  stream_.begin_capture();
  stream_.record(event);
  EXPECT_THROW(event.done(), UserError);
  EXPECT_THROW(stream_.end_capture(), UserError);
  expect_found("cuEventQuery on an event that was captured");
}

TEST_F(StubAuditTest, AllocationsByOtherThreadsDoNotBreakACapture) {
  stream_.begin_capture();
  std::thread([&] { Buffer(device_, 64, "elsewhere"); }).join();
  const Graph graph(device_, stream_.end_capture());
}

TEST_F(StubAuditTest, MoreThreadsThanABlockHas) {
  codegen::GpuCode code = add_one_code("wide");
  code.threads = 2048;
  const auto kernel = device_->load(code);
  const uint64_t arguments[] = {x_.address(), y_.address(), 64};
  EXPECT_THROW(stream_.launch(*kernel, 1, arguments), UserError);
  expect_found("1 CTAs of 2048 threads");
}

TEST_F(StubAuditTest, OtherThreadsThanTheKernelWasCompiledFor) {
  LoadedKernel kernel = *kernel_;
  kernel.threads = 128;
  const uint64_t arguments[] = {x_.address(), y_.address(), 64};
  EXPECT_THROW(stream_.launch(kernel, 1, arguments), UserError);
  expect_found("CTAs of 128 threads, and it was compiled for 64");
}

TEST_F(StubAuditTest, SharedMemoryThatWasNotAskedFor) {
  LoadedKernel kernel = *kernel_;
  kernel.shared_bytes = 64 << 10;
  const uint64_t arguments[] = {x_.address(), y_.address(), 64};
  EXPECT_THROW(stream_.launch(kernel, 1, arguments), UserError);
  expect_found("65536 bytes of shared memory, of which 49152 were asked for");
}

TEST_F(StubAuditTest, HandlesThatNoLongerLive) {
  const Driver& driver = device_->driver();
  StreamHandle stream = nullptr;
  EventHandle event = nullptr;
  ASSERT_EQ(driver.stream_create(&stream, 1), kSuccess);
  ASSERT_EQ(driver.event_create(&event, 2), kSuccess);
  EXPECT_EQ(driver.stream_destroy(stream), kSuccess);
  EXPECT_EQ(driver.event_destroy(event), kSuccess);
  EXPECT_NE(driver.stream_synchronize(stream), kSuccess);
  expect_found("cuStreamSynchronize on a stream that does not live");
  EXPECT_NE(driver.event_record(event, stream_.handle()), kSuccess);
  expect_found("cuEventRecord on an event that does not live");
}

TEST_F(StubAuditTest, AKernelOfAnUnloadedModule) {
  const FunctionHandle function = kernel_->function;
  kernel_.reset();
  void* none[] = {nullptr};
  EXPECT_NE(device_->driver().launch(function, 1, 1, 1, 64, 1, 1, 0, nullptr, none, nullptr),
            kSuccess);
  expect_found("cuLaunchKernel of a kernel whose module was unloaded");
}

TEST_F(StubAuditTest, MemoryFreedTwice) {
  const Driver& driver = device_->driver();
  Address address = 0;
  ASSERT_EQ(driver.allocate(&address, 100), kSuccess);
  EXPECT_EQ(driver.release(address), kSuccess);
  EXPECT_NE(driver.release(address), kSuccess);
  expect_found("cuMemFree: it points to freed memory");
}

// Lazy streams do nothing before someone waits: what is not waited for is not there.
class LazyStubTest : public StubAuditTest {
 protected:
  LazyStubTest() {
    stub_.script("lazy");
    stream_.fill(x_.address(), 0, x_.bytes());
    stream_.synchronize();
    host_ = static_cast<float*>(device_->allocate_pinned(256, "a result"));
    std::fill_n(host_, 64, -1.0f);
  }
  ~LazyStubTest() override { device_->release_pinned(host_); }
  void fetch(Stream& stream) { stream.copy(reinterpret_cast<Address>(host_), y_.address(), 256); }

  float* host_ = nullptr;
};

TEST_F(LazyStubTest, AResultIsThereAfterTheWaitAndNotBefore) {
  add_one(stream_, x_.address(), y_.address());
  fetch(stream_);
  EXPECT_EQ(host_[0], -1.0f);
  stream_.synchronize();
  EXPECT_EQ(host_[0], 1.0f);
}

TEST_F(LazyStubTest, WhatAnEventWaitsForIsDoneFirst) {
  Event done(device_);
  add_one(stream_, x_.address(), y_.address());
  stream_.record(done);
  other_.wait(done);
  fetch(other_);
  other_.synchronize();
  EXPECT_EQ(host_[0], 1.0f);
}

TEST_F(LazyStubTest, WithoutTheEventTheResultIsWrong) {
  add_one(stream_, x_.address(), y_.address());
  fetch(other_);
  other_.synchronize();
  EXPECT_NE(host_[0], 1.0f);
  stream_.synchronize();
  EXPECT_THAT(stub_.take_reports(), HasSubstr("missing wait: a copy of 256 bytes"));
}

TEST_F(LazyStubTest, PinnedMemoryFreedTooEarlyIsReported) {
  void* staging = device_->allocate_pinned(256, "staging");
  stream_.copy(x_.address(), reinterpret_cast<Address>(staging), 256);
  device_->release_pinned(staging);
  EXPECT_THAT(stub_.take_reports(), HasSubstr("work that was not waited for uses it"));
}

TEST_F(LazyStubTest, AGraphReadsHostMemoryWhenItRuns) {
  std::vector<float> host(64, 5.0f);
  stream_.begin_capture();
  stream_.copy(x_.address(), reinterpret_cast<Address>(host.data()), 256);
  add_one(stream_, x_.address(), y_.address());
  const Graph graph(device_, stream_.end_capture());
  host.assign(64, 7.0f);
  stream_.launch(graph);
  fetch(stream_);
  stream_.synchronize();
  EXPECT_EQ(host_[63], 8.0f);
}

TEST(StubLeakTest, WhatIsLeftWhenTheContextGoes) {
  StubDriver stub;
  Address address = 0;
  {
    auto device = Device::open(0);
    device->make_current();
    ASSERT_EQ(device->driver().allocate(&address, 12345), kSuccess);
  }
  EXPECT_THAT(stub.take_reports(),
              HasSubstr("leaked with the context of device 0: device memory of "
                        "12345 bytes"));
  auto device = Device::open(0);
  device->release(address);
  device.reset();
  EXPECT_EQ(stub.leaks(), "");
}

TEST(StubScriptTest, ACommandThatIsNotUnderstoodIsNamed) {
  StubDriver stub;
  EXPECT_THAT(stub.problem("free_memory 1; explode"), HasSubstr("no command 'explode'"));
  EXPECT_THAT(stub.problem("fail cuMemAlloc_v2 soon 2"), HasSubstr("the number of a call"));
  EXPECT_THAT(stub.problem("arch nine"), HasSubstr("major.minor"));
}

}  // namespace
}  // namespace tenon::device
