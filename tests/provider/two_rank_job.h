// Rank 0 of a job of two whose other rank does not exist: tests override what they look at.
#pragma once

#include <memory>
#include <string>

#include "distributed/job.h"

namespace tenon::provider {

class TwoRankJob : public distributed::Job {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string engine() const override { return "none"; }
  std::shared_ptr<const kernels::Collectives> collectives() const override { return nullptr; }
  void require_equal(const std::string&, const distributed::Fingerprint&) const override {}
};

}  // namespace tenon::provider
