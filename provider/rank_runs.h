// Runs of one partition where several ranks make them together: each tells the others which shapes
// it runs with, and what it fails of.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "distributed/job.h"
#include "kernels/device/device.h"
#include "kernels/running/executable.h"

namespace tenon::provider {

class RankRuns {
 public:
  RankRuns(std::shared_ptr<distributed::Job> job, std::string partition,
           std::vector<std::string> inputs);

  // Waits for nobody. Throws where the ranks are known to have failed.
  void announce(kernels::RunContext& run);
  // What a Run put on the stream of a GPU ends, even if other ranks do not come.
  void watch(const std::shared_ptr<device::Device>& device, void* stream) const;
  // Rethrows the exception that is being handled, when the others have heard of it, with what they
  // know of each other.
  [[noreturn]] void give_up() const;

 private:
  const std::shared_ptr<distributed::Job> job_;
  const std::string partition_;
  const std::vector<std::string> inputs_;  // names
  int64_t runs_ = 0;
};

// "ids [1,7], past.0.key to past.3.value (8 inputs) [1,2,0,64]": inputs in a row that have one
// shape are told at once, and of very many the rest is a digest.
std::string shapes_text(const std::vector<std::string>& names, kernels::RunContext& run);

}  // namespace tenon::provider
