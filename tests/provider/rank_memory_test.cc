#include "provider/rank_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/provider/two_rank_job.h"

namespace tenon::provider {
namespace {

using testing::ElementsAre;

class NotedJob : public TwoRankJob {
 public:
  bool agree_on_memory(const std::string& occasion, const std::string& layout) override {
    asked.push_back(occasion + " as " + layout);
    return true;
  }
  std::shared_ptr<void> make_memory(const std::string& occasion, size_t bytes) override {
    asked.push_back(occasion + " of " + std::to_string(bytes));
    return nullptr;
  }

  std::vector<std::string> asked;
};

distributed::ShardingReport with_heads(std::vector<int64_t> heads) {
  distributed::ShardingReport sharding;
  sharding.caches.push_back({"heads", {"past.0.key"}, std::move(heads)});
  return sharding;
}

TEST(RankMemoryTest, AsksTheRanksForThePartition) {
  const auto job = std::make_shared<NotedJob>();
  for (const std::optional<distributed::ShardingReport>& sharding :
       {std::optional<distributed::ShardingReport>(), std::optional(with_heads({4, 4}))}) {
    job->asked.clear();
    const auto memory = rank_memory(job, "tenon_3", sharding);
    ASSERT_NE(memory, nullptr);
    EXPECT_TRUE(memory->agree("a"));
    EXPECT_EQ(memory->make(64), nullptr);
    EXPECT_THAT(job->asked, ElementsAre("tenon_3 as a", "tenon_3 of 64"));
  }
}

TEST(RankMemoryTest, IsNotForRanksWithDifferentHeads) {
  EXPECT_EQ(rank_memory(std::make_shared<NotedJob>(), "tenon_0", with_heads({3, 3, 2})), nullptr);
}

}  // namespace
}  // namespace tenon::provider
