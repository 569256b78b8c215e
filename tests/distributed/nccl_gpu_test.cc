// The real NCCL on the first GPU, as one rank: that it takes our declarations and calls as they
// are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distributed/nccl.h"
#include "kernels/device/stream.h"
#include "tests/distributed/check_collectives.h"
#include "tests/distributed/rank_data.h"
#include "tests/distributed/ranks.h"
#include "tests/distributed/staged_ranks.h"

namespace tenon::distributed {
namespace {

using ::testing::HasSubstr;

class NcclGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device::Device::list().empty()) GTEST_SKIP() << "the driver offers no GPU";
    if (!nccl().support) GTEST_SKIP() << nccl().support.reason;
    device_ = device::Device::open(0);
  }
  std::unique_ptr<Communicator> make() {
    return make_nccl(nccl().functions, make_nccl_id(nccl().functions), 0, 1,
                     make_rank_device(device_));
  }

  std::shared_ptr<device::Device> device_;
};

TEST_F(NcclGpuTest, EveryCollectiveOnEveryType) {
  const auto ranks = make_staged(make(), device_);
  EXPECT_EQ(ranks->engine(), "nccl " + nccl_version_text(nccl().functions.version));
  for (const DType dtype : kMovedTypes) check_collectives(*ranks, dtype, 1031, 1);
  const std::vector<std::vector<int>> groups{{0}};
  const auto group = ranks->split(groups);
  ASSERT_NE(group, nullptr);
  check_collectives(*group, DType::kF16, 7, 2);
  EXPECT_EQ(ranks->split({}), nullptr);
}

TEST_F(NcclGpuTest, AGraphHoldsACollective) {
  const auto ranks = make();
  device::Stream stream(device_);
  float value = 3;
  const device::Buffer in(device_, sizeof(value), "a test"), out(device_, sizeof(value), "a test");
  const auto sum = [&] {
    ranks->all_reduce(reinterpret_cast<void*>(in.address()), reinterpret_cast<void*>(out.address()),
                      1, DType::kF32, Reduction::kSum, stream.handle());
  };
  sum();  // connects
  stream.synchronize();
  stream.begin_capture();
  sum();
  const device::Graph graph(device_, stream.end_capture());
  stream.copy(in.address(), reinterpret_cast<device::Address>(&value), sizeof(value));
  stream.launch(graph);
  float got = 0;
  stream.copy(reinterpret_cast<device::Address>(&got), out.address(), sizeof(got));
  stream.synchronize();
  EXPECT_EQ(got, value);
}

TEST_F(NcclGpuTest, ANewOneWorksAfterAnAbort) {
  for (int round = 0; round < 3; ++round) {
    const auto aborted = make();
    aborted->abort("enough");
    EXPECT_THAT(thrown_by([&] { aborted->barrier(nullptr); }), HasSubstr("enough"));
    const auto ranks = make_staged(make(), device_);
    check_collectives(*ranks, DType::kF32, 5, 1);
  }
}

TEST_F(NcclGpuTest, ARankThatDoesNotComeEndsTheWaitAtTheDeadline) {
  const NcclSettings settings{.common = {std::chrono::milliseconds(1500)}};
  EXPECT_THAT(thrown_by([&] {
                make_nccl(nccl().functions, make_nccl_id(nccl().functions), 0, 2,
                          make_rank_device(device_), settings);
              }),
              HasSubstr("a communicator of 2 ranks, as rank 0: NCCL was not done within 1500 ms"));
}

}  // namespace
}  // namespace tenon::distributed
