#include "distributed/gloo/gloo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/distributed/check_collectives.h"
#include "tests/distributed/processes.h"
#include "tests/distributed/rank_data.h"

namespace tenon::distributed {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;

const auto kWell =
    AllOf(Field(&Ended::thrown, ""), Field(&Ended::failed, false), Field(&Ended::signal, 0));

// How many ranks there are.
class GlooTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const Support there = gloo_support(); !there) GTEST_SKIP() << there.reason;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooTest, ::testing::Values(1, 2, 3, 4));

TEST_P(GlooTest, EveryCollectiveOnEveryType) {
  EXPECT_THAT(run_gloo(GetParam(), {},
                       [](Communicator& ranks) {
                         for (const DType dtype : kMovedTypes) {
                           for (const int64_t count : {1, 7, 259}) {
                             check_collectives(ranks, dtype, count, count);
                           }
                         }
                       }),
              Each(kWell));
}

}  // namespace
}  // namespace tenon::distributed
