// Memory that the collectives of one partition are faster on, made by all ranks of a job.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "distributed/job.h"
#include "distributed/sharding/report.h"
#include "kernels/running/collective_memory.h"

namespace tenon::provider {

// Null where ranks bind different numbers of heads: their sizes would not be the same.
std::shared_ptr<kernels::CollectiveMemory> rank_memory(
    std::shared_ptr<distributed::Job> job, std::string partition,
    const std::optional<distributed::ShardingReport>& sharding);

}  // namespace tenon::provider
