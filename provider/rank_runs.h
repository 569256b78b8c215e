// Runs of one partition where several ranks make them together: each tells the others which shapes
// it runs with, and what it fails of.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "distributed/job.h"
#include "distributed/sharding/report.h"
#include "kernels/device/stream.h"
#include "kernels/running/executable.h"

namespace tenon::provider {

using InputDims = std::vector<std::vector<int64_t>>;

class RankRuns {
 public:
  // `sharding` tells the caches that ranks bind their own heads of: those may differ.
  RankRuns(std::shared_ptr<distributed::Job> job, std::string partition,
           std::vector<std::string> inputs,
           const std::optional<distributed::ShardingReport>& sharding);

  // Waits for nobody. Throws where the ranks are known to have failed.
  void announce(kernels::RunContext& run);
  // What a Run put on the stream of a GPU ends, even if other ranks do not come.
  void watch(const std::shared_ptr<device::Device>& device, void* stream);
  // Rethrows the exception that is being handled, when the others have heard of it, with what they
  // know of each other.
  [[noreturn]] void give_up() const;

 private:
  // Whether shapes differ from those of the Run before.
  bool note_dims(kernels::RunContext& run);
  // One that no Run is watched by any more.
  std::shared_ptr<device::Event> free_event(const std::shared_ptr<device::Device>& device);

  const std::shared_ptr<distributed::Job> job_;
  const std::string partition_;
  const std::vector<std::string> inputs_;  // names
  std::set<std::string> by_heads_;         // of them
  int64_t runs_ = 0;
  // Kept from Run to Run: most have the shapes of the one before.
  InputDims dims_;
  distributed::Fingerprint shapes_;
  std::vector<std::shared_ptr<device::Event>> events_;  // as many as Runs were in flight at once
};

// "ids [1,7], past.0.key to past.3.value (8 inputs) [1,2,0,64]": inputs in a row that have one
// shape are told at once, and of very many the rest is a digest. Of caches `by_heads` the number of
// heads is left out.
std::string shapes_text(const std::vector<std::string>& names,
                        const std::set<std::string>& by_heads, const InputDims& dims);

}  // namespace tenon::provider
