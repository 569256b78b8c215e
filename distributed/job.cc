#include "distributed/job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "distributed/collective_calls.h"
#include "distributed/connect_ranks.h"
#include "distributed/gloo/gloo.h"
#include "distributed/messages.h"
#include "distributed/nccl_library.h"
#include "distributed/registered_memory.h"
#include "distributed/rendezvous/store.h"
#include "distributed/run_watch.h"

namespace tenon::distributed {
namespace {

constexpr std::chrono::milliseconds kForVerdict{1000};  // rank 0 asks all ranks before it speaks

class MetJob : public Job {
 public:
  MetJob(const JobOptions& options, const LaunchPlace& place, std::shared_ptr<RankDevice> gpu)
      : deadline_(options.deadline),
        mixes_graphs_(!options.orders_graphs || gpu == nullptr ||
                      !has_graph_usage_mode(nccl().functions.version)) {
    Store::Settings settings;
    settings.deadline = options.deadline;
    // Before a collective is late: who is silent is told apart from who is elsewhere.
    settings.silence = std::min(settings.silence, options.deadline / 2);
    settings.progress = [this] { return progress(); };
    settings.on_lost = [this](int, const std::string& reason) { lose(reason); };
    store_ = Store::join(place, std::move(settings));
    distributed::require_equal(*store_, "start", options.facts, deadline_);
    connect(gpu != nullptr
                ? connect_nccl(*store_, gpu, {deadline_, options.peer_memory, mixes_graphs_})
                : connect_host(*store_, options.host_backend, place.host, deadline_));
    if (gpu != nullptr) watch_.emplace(deadline_, [this] { be_late(); });
  }

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  std::string engine() const override { return communicator_->engine(); }
  std::shared_ptr<const kernels::Collectives> collectives() const override { return collectives_; }
  bool needs_order() const override { return !mixes_graphs_ || communicator_->needs_order(); }
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
  bool agree_on_memory(const std::string& occasion, const std::string& layout) override {
    const std::lock_guard lock(memory_mutex_);
    return memory_->agree(occasion, layout);
  }
  std::shared_ptr<void> make_memory(const std::string& occasion, size_t bytes) override {
    const std::lock_guard lock(memory_mutex_);
    return memory_->make(occasion, bytes);
  }
  std::string why_no_memory() const override {
    const std::lock_guard lock(memory_mutex_);
    return memory_->why_none();
  }
  void require_alive() const override {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) throw CollectiveError(lost_);
    if (const std::string failure = communicator_->failure(); !failure.empty()) {
      throw CollectiveError(failure);
    }
  }
  void watch(std::function<bool()> is_done) override {
    if (watch_) watch_->add(std::move(is_done));
  }

 private:
  std::string progress() {
    const std::lock_guard lock(mutex_);
    return communicator_ ? communicator_->progress().text() : "";
  }
  void connect(std::shared_ptr<Communicator> made) {
    collectives_ = make_collectives(made);
    memory_.emplace(
        made,
        [this](const std::string& occasion, const Fingerprint& mine) {
          require_equal(occasion, mine);
        },
        deadline_ / 4);
    const std::lock_guard lock(mutex_);
    communicator_ = std::move(made);
    if (!lost_.empty()) communicator_->abort(lost_);
  }
  void lose(const std::string& reason) {
    std::shared_ptr<Communicator> connected;
    {
      const std::lock_guard lock(mutex_);
      if (lost_.empty()) lost_ = reason;
      connected = communicator_;
    }
    if (connected) connected->abort(reason);
  }
  void be_late() {
    const std::string reason = fmt::format(
        "a Run on rank {} of {} was not done within {}: its GPU waits for other ranks, or "
        "collective_deadline_ms is too short for this Run",
        rank(), size(), time_text(deadline_));
    lose(give_up(reason));
  }

  const std::chrono::milliseconds deadline_;
  const bool mixes_graphs_;
  mutable std::mutex mutex_;
  std::string lost_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<const kernels::Collectives> collectives_;
  mutable std::mutex memory_mutex_;
  std::optional<RegisteredMemory> memory_;
  // Both go first: their threads call lose().
  std::unique_ptr<Store> store_;
  std::optional<RunWatch> watch_;
};

}  // namespace

std::shared_ptr<Job> Job::join(const JobOptions& options, const Variables& variables,
                               std::shared_ptr<RankDevice> gpu) {
  const LaunchPlace place = launch_place(options.launch, variables, ::getuid());
  if (place.size == 1) return nullptr;
  // Shared memory may do without Gloo, which is seen when ranks have met.
  const bool needs_gloo = gpu == nullptr && options.host_backend == "gloo";
  const Support engine = gpu != nullptr ? nccl().support : needs_gloo ? gloo_support() : Support();
  if (!engine) throw UserError(engine.reason);
  return std::make_shared<MetJob>(options, place, std::move(gpu));
}

}  // namespace tenon::distributed
