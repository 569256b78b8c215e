#include "distributed/job.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "distributed/collective_calls.h"
#include "distributed/gloo/address.h"
#include "distributed/gloo/gloo.h"
#include "distributed/rendezvous/store.h"

namespace tenon::distributed {
namespace {

class HostJob : public Job {
 public:
  HostJob(const JobOptions& options, const LaunchPlace& place) : deadline_(options.deadline) {
    Store::Settings settings;
    settings.deadline = options.deadline;
    settings.silence = std::min(settings.silence, options.deadline);
    settings.on_lost = [this](int, const std::string& reason) { lose(reason); };
    store_ = Store::join(place, std::move(settings));
    distributed::require_equal(*store_, "start", options.facts, deadline_);
    const KeyValues values{
        [this](const std::string& key, const std::string& value) { store_->set(key, value); },
        [this](int rank, const std::string& key, std::chrono::milliseconds deadline) {
          return store_->get(rank, key, deadline);
        }};
    GlooSettings gloo;
    gloo.common.deadline = options.deadline;
    gloo.address = address_towards(place.host);
    std::shared_ptr<Communicator> made = make_gloo(place.rank, place.size, values, gloo);
    const std::lock_guard lock(mutex_);
    communicator_ = std::move(made);
    if (!lost_.empty()) communicator_->abort(lost_);
  }

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  std::string engine() const override { return communicator_->engine(); }
  std::shared_ptr<const kernels::Collectives> collectives() const override {
    return make_collectives(communicator_);
  }
  void require_equal(const std::string& occasion, const Fingerprint& mine) const override {
    distributed::require_equal(*store_, occasion, mine, deadline_);
  }

 private:
  void lose(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (lost_.empty()) lost_ = reason;
    if (communicator_) communicator_->abort(reason);
  }

  const std::chrono::milliseconds deadline_;
  std::mutex mutex_;
  std::string lost_;
  std::shared_ptr<Communicator> communicator_;
  std::unique_ptr<Store> store_;  // goes first: its threads call lose()
};

}  // namespace

std::shared_ptr<Job> Job::join(const JobOptions& options, const Variables& variables) {
  const LaunchPlace place = launch_place(options.launch, variables, ::getuid());
  if (place.size == 1) return nullptr;
  if (const Support gloo = gloo_support(); !gloo) throw UserError(gloo.reason);
  return std::make_shared<HostJob>(options, place);
}

}  // namespace tenon::distributed
