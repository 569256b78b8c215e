#include "distributed/job.h"

#include <fmt/format.h>
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

constexpr std::chrono::milliseconds kForVerdict{1000};  // rank 0 asks all ranks before it speaks

class HostJob : public Job {
 public:
  HostJob(const JobOptions& options, const LaunchPlace& place) : deadline_(options.deadline) {
    Store::Settings settings;
    settings.deadline = options.deadline;
    // Before a collective is late: who is silent is told apart from who is elsewhere.
    settings.silence = std::min(settings.silence, options.deadline / 2);
    settings.progress = [this] { return progress(); };
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
  void announce(const std::string& occasion, const Fingerprint& mine) const override {
    store_->announce(occasion, mine);
  }
  std::string give_up(const std::string& reason) const override {
    store_->report_failure(reason);
    const std::string told = store_->verdict(kForVerdict).value_or("");
    if (told.find(reason) != std::string::npos) return told;
    if (reason.find(told) != std::string::npos) return reason;
    return fmt::format("{}; {}", reason, told);
  }

 private:
  std::string progress() {
    const std::lock_guard lock(mutex_);
    return communicator_ ? communicator_->progress().text() : "";
  }
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
