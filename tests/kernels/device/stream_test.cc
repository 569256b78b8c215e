#include "kernels/device/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/kernels/device/stub_driver.h"

namespace tenon::device {
namespace {

using test::add_one_code;
using test::double_in_place_code;
using test::kAddOneTile;
using test::StubDriver;

Address address_of(const void* memory) { return reinterpret_cast<Address>(memory); }

class StreamTest : public ::testing::Test {
 protected:
  static constexpr int64_t kCount = 1000;

  StreamTest() : device_(Device::open(0)), stream_(device_), numbers_(kCount) {
    std::iota(numbers_.begin(), numbers_.end(), 0.0f);
    x_ = Buffer(device_, kCount * sizeof(float), "x");
    y_ = Buffer(device_, kCount * sizeof(float), "y");
    stream_.copy(x_.address(), address_of(numbers_.data()), x_.bytes());
  }

  void add_one(Stream& stream, Address x, Address y) {
    const uint64_t arguments[] = {x, y, kCount};
    stream.launch(*kernel_, (kCount + kAddOneTile - 1) / kAddOneTile, arguments);
  }

  std::vector<float> result(const Buffer& buffer) {
    std::vector<float> values(kCount);
    stream_.copy(address_of(values.data()), buffer.address(), buffer.bytes());
    stream_.synchronize();
    return values;
  }

  StubDriver stub_;
  std::shared_ptr<Device> device_;
  Stream stream_;
  std::shared_ptr<const LoadedKernel> kernel_ = device_->load(add_one_code());
  std::vector<float> numbers_;
  Buffer x_, y_;
};

TEST_F(StreamTest, RunsAKernelOnEveryElement) {
  add_one(stream_, x_.address(), y_.address());
  const std::vector<float> values = result(y_);
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(values[i], static_cast<float>(i + 1));
}

TEST_F(StreamTest, NoTasksIsNoLaunch) {
  stream_.launch(*kernel_, 0, {});
  EXPECT_EQ(stub_.calls("cuLaunchKernel"), 0);
}

TEST_F(StreamTest, MoreBlocksThanALaunchTakesIsAnError) {
  EXPECT_THROW(stream_.launch(*kernel_, int64_t{1} << 31, {}), UserError);
}

TEST_F(StreamTest, FillsBytes) {
  stream_.fill(y_.address(), 0, y_.bytes());
  for (const float value : result(y_)) ASSERT_EQ(value, 0.0f);
}

TEST_F(StreamTest, AnotherStreamWaitsForAnEvent) {
  Stream other(device_);
  Event ready(device_);
  add_one(stream_, x_.address(), y_.address());
  stream_.record(ready);
  other.wait(ready);
  add_one(other, y_.address(), y_.address());
  other.synchronize();
  EXPECT_EQ(result(y_)[7], 9.0f);
}

TEST_F(StreamTest, EventsTellTheTime) {
  Event begin(device_, true), end(device_, true);
  stream_.record(begin);
  add_one(stream_, x_.address(), y_.address());
  stream_.record(end);
  end.synchronize();
  EXPECT_TRUE(end.done());
  EXPECT_GT(Event::milliseconds(begin, end), 0.0f);
}

TEST_F(StreamTest, ACapturedSequenceRunsWhenLaunchedAndAgain) {
  stream_.synchronize();
  stream_.begin_capture();
  EXPECT_TRUE(stream_.capturing());
  add_one(stream_, x_.address(), x_.address());
  const Graph graph(device_, stream_.end_capture());
  EXPECT_FALSE(stream_.capturing());
  EXPECT_EQ(result(x_)[0], 0.0f);
  stream_.launch(graph);
  stream_.launch(graph);
  EXPECT_EQ(result(x_)[0], 2.0f);
}

TEST_F(StreamTest, ACaptureForksAndJoins) {
  Stream side(device_);
  Event forked(device_), joined(device_);
  stream_.synchronize();
  stream_.begin_capture();
  add_one(stream_, x_.address(), y_.address());
  stream_.record(forked);
  side.wait(forked);
  add_one(side, y_.address(), y_.address());
  side.record(joined);
  stream_.wait(joined);
  add_one(stream_, y_.address(), y_.address());
  const Graph graph(device_, stream_.end_capture());
  stream_.launch(graph);
  EXPECT_EQ(result(y_)[0], 3.0f);
}

TEST_F(StreamTest, AGraphTakesOtherAddresses) {
  Buffer z(device_, y_.bytes(), "z");
  stream_.synchronize();
  stream_.begin_capture();
  add_one(stream_, x_.address(), y_.address());
  Graph graph(device_, stream_.end_capture());
  stream_.begin_capture();
  add_one(stream_, x_.address(), z.address());
  EXPECT_TRUE(graph.update(stream_.end_capture()));
  stream_.launch(graph);
  EXPECT_EQ(result(z)[4], 5.0f);

  const auto other = device_->load(double_in_place_code());
  stream_.begin_capture();
  const uint64_t arguments[] = {x_.address(), kCount};
  stream_.launch(*other, 1, arguments);
  EXPECT_FALSE(graph.update(stream_.end_capture()));
  EXPECT_THAT(stub_.leaks(), ::testing::Not(::testing::HasSubstr(" graphs\n1")));
}

TEST_F(StreamTest, ABorrowedStreamIsNotDestroyed) {
  { const Stream borrowed(device_, stream_.handle()); }
  EXPECT_EQ(stub_.calls("cuStreamDestroy_v2"), 0);
  stream_.synchronize();
}

TEST_F(StreamTest, SynchronizesWithinADeadline) {
  add_one(stream_, x_.address(), y_.address());
  EXPECT_NO_THROW(stream_.synchronize(std::chrono::milliseconds(500)));
}

}  // namespace
}  // namespace tenon::device
