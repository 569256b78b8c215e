#include "distributed/planned_job.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "distributed/collective_calls.h"

namespace tenon::distributed {
namespace {

// Nothing of a plan runs: a call that comes through is a fault of ours, and refused.
class PlannedCommunicator : public Communicator {
 public:
  PlannedCommunicator(int rank, int size) : Communicator(rank, size, {}) {}

  std::string engine() const override { return "planned"; }
  void abort(const std::string& reason) override { fail(reason); }

 protected:
  std::unique_ptr<Communicator> do_split(std::span<const std::vector<int>>,
                                         const std::vector<int>* group) override {
    if (group == nullptr) return nullptr;
    const auto place = std::ranges::find(*group, rank()) - group->begin();
    return std::make_unique<PlannedCommunicator>(static_cast<int>(place),
                                                 static_cast<int>(group->size()));
  }
};

class PlannedJob : public Job {
 public:
  PlannedJob(int rank, int size)
      : communicator_(std::make_shared<PlannedCommunicator>(rank, size)) {}

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  std::string engine() const override { return communicator_->engine(); }
  std::shared_ptr<const kernels::Collectives> collectives() const override {
    return make_collectives(communicator_);
  }
  void require_equal(const std::string&, const Fingerprint&) const override {}

 private:
  const std::shared_ptr<Communicator> communicator_;
};

}  // namespace

std::shared_ptr<Job> planned_job(int rank, int size) {
  if (size < 2 || rank < 0 || rank >= size) {
    throw UserError(fmt::format(
        "tensor_parallel_plan=1 asks for one of several ranks: give tensor_parallel_size and "
        "tensor_parallel_rank, from 0 on (they are {} and {})",
        size, rank));
  }
  return std::make_shared<PlannedJob>(rank, size);
}

}  // namespace tenon::distributed
