#include "provider/rank_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/device/stream.h"
#include "tests/kernels/device/stub_driver.h"
#include "tests/provider/two_rank_job.h"

namespace tenon::provider {
namespace {

using testing::ElementsAre;

class NotedJob : public TwoRankJob {
 public:
  void announce(const std::string& occasion, const distributed::Fingerprint& mine) const override {
    announced.push_back(occasion + ": " + mine.fields.at(0).second);
  }
  void watch(std::function<bool()> is_done) override { watched.push_back(std::move(is_done)); }

  mutable std::vector<std::string> announced;
  std::vector<std::function<bool()>> watched;
};

class Inputs : public kernels::RunContext {
 public:
  explicit Inputs(InputDims dims) : dims_(std::move(dims)) {}
  Input input(size_t index) override { return {nullptr, dims_[index]}; }
  void* output(size_t, std::span<const int64_t>) override { return nullptr; }
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}

 private:
  const InputDims dims_;
};

TEST(RankRunsTest, TellsTheShapesOfEachRun) {
  const auto job = std::make_shared<NotedJob>();
  RankRuns runs(job, "tenon_0", {"ids", "mask"}, std::nullopt);
  Inputs one({{1, 7}, {1, 7}}), other({{1, 7}, {1, 8}}), of_another_rank({{1, 7}, {1}});
  for (Inputs* inputs : {&one, &one, &other, &of_another_rank, &one}) runs.announce(*inputs);
  EXPECT_THAT(job->announced, ElementsAre("Run 1 of tenon_0: ids to mask (2 inputs) [1,7]",
                                          "Run 2 of tenon_0: ids to mask (2 inputs) [1,7]",
                                          "Run 3 of tenon_0: ids [1,7], mask [1,8]",
                                          "Run 4 of tenon_0: ids [1,7], mask [1]",
                                          "Run 5 of tenon_0: ids to mask (2 inputs) [1,7]"));
}

TEST(RankRunsTest, ARunWithoutInputsIsAnnouncedToo) {
  const auto job = std::make_shared<NotedJob>();
  RankRuns runs(job, "tenon_1", {}, std::nullopt);
  Inputs none({});
  runs.announce(none);
  EXPECT_THAT(job->announced, ElementsAre("Run 1 of tenon_1: "));
}

TEST(RankRunsTest, WarmRunsMakeNoEvents) {
  test::StubDriver stub;
  const auto device = device::Device::open(0);
  const auto job = std::make_shared<NotedJob>();
  {
    RankRuns runs(job, "tenon_0", {}, std::nullopt);
    device::Stream stream(device);
    const long before = stub.calls("cuEventCreate");
    runs.watch(device, stream.handle());
    runs.watch(device, stream.handle());  // while the first is in flight
    EXPECT_EQ(stub.calls("cuEventCreate") - before, 2);
    for (int run = 0; run < 10; ++run) {
      stream.synchronize();
      EXPECT_TRUE(std::ranges::all_of(job->watched, [](const auto& done) { return done(); }));
      job->watched.clear();
      runs.watch(device, stream.handle());
    }
    EXPECT_EQ(stub.calls("cuEventCreate") - before, 2);
  }
  // The job may ask after the partition has gone.
  EXPECT_TRUE(job->watched.at(0)());
}

}  // namespace
}  // namespace tenon::provider
