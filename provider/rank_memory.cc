#include "provider/rank_memory.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace tenon::provider {
namespace {

class RankMemory final : public kernels::CollectiveMemory {
 public:
  RankMemory(std::shared_ptr<distributed::Job> job, std::string partition)
      : job_(std::move(job)), partition_(std::move(partition)) {}

  bool agree(const std::string& layout) override {
    return job_->agree_on_memory(partition_, layout);
  }
  std::shared_ptr<void> make(size_t bytes) override { return job_->make_memory(partition_, bytes); }

 private:
  const std::shared_ptr<distributed::Job> job_;
  const std::string partition_;
};

bool have_equal_heads(const distributed::CacheShare& cache) {
  return std::ranges::adjacent_find(cache.heads_by_rank, std::not_equal_to()) ==
         cache.heads_by_rank.end();
}

}  // namespace

std::shared_ptr<kernels::CollectiveMemory> rank_memory(
    std::shared_ptr<distributed::Job> job, std::string partition,
    const std::optional<distributed::ShardingReport>& sharding) {
  if (sharding && !std::ranges::all_of(sharding->caches, have_equal_heads)) return nullptr;
  return std::make_shared<RankMemory>(std::move(job), std::move(partition));
}

}  // namespace tenon::provider
