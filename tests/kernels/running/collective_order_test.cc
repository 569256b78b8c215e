#include "kernels/running/collective_order.h"

#include <gtest/gtest.h>

#include "tests/kernels/device/stub_driver.h"

namespace tenon::kernels {
namespace {

class CollectiveOrderTest : public ::testing::Test {
 protected:
  // Of a stream for an event, and of the host.
  long waits() const { return stub_.calls("cuStreamWaitEvent"); }
  long host_waits() const { return stub_.calls("cuEventSynchronize"); }

  const test::StubDriver stub_;
  const std::shared_ptr<device::Device> device_ = device::Device::open(0);
  device::Stream one_{device_}, other_{device_};
  CollectiveOrder order_{device_, /*streams_last=*/false};
};

TEST_F(CollectiveOrderTest, RunsOnOneStreamWaitForNothing) {
  for (int run = 0; run < 3; ++run) {
    order_.before_launches(one_);
    order_.after_launches(one_);
  }
  for (int run = 0; run < 3; ++run) {
    order_.before_graph(one_);
    order_.after_graph(one_);
  }
  EXPECT_EQ(waits(), 0);
  EXPECT_EQ(host_waits(), 0);
}

TEST_F(CollectiveOrderTest, AnotherStreamWaitsForTheRunBefore) {
  order_.after_launches(one_);
  order_.before_launches(other_);
  EXPECT_EQ(waits(), 1);
  order_.after_launches(other_);
  order_.before_launches(other_);
  EXPECT_EQ(waits(), 1);
  order_.before_launches(one_);
  EXPECT_EQ(waits(), 2);
  EXPECT_EQ(host_waits(), 0);
}

// NCCL is not told of the order of streams.
TEST_F(CollectiveOrderTest, TheHostWaitsWhereGraphsAndLaunchesMeet) {
  order_.after_graph(one_);
  order_.before_launches(one_);
  EXPECT_EQ(host_waits(), 1);
  order_.after_launches(one_);
  order_.before_graph(one_);
  EXPECT_EQ(host_waits(), 1);
  order_.after_graph(one_);
  order_.before_graph(other_);
  EXPECT_EQ(host_waits(), 2);
}

}  // namespace
}  // namespace tenon::kernels
