#include "kernels/tuner/tuner.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/thread_pool.h"
#include "kernels/tuner/partition_trial.h"

namespace tenon::kernels {
namespace {

constexpr double kGains = 0.99;  // times what runs untuned: worth another plan
constexpr double kRival = 1.05;  // times the fastest: the whole partition decides
constexpr size_t kMostRivals = 2;

class Tuner {
 public:
  Tuner(const ir::Graph& fused, const Settings& settings, std::shared_ptr<device::Device> device,
        TuneLog& log, const TuningWork& work)
      : fused_(fused), settings_(settings), device_(std::move(device)), log_(log), work_(work) {
    settings_.tuning.told = work.options.told;
    fusions_ = tunable_fusions(fused, settings_);
    settings_.tuning.told = settings.tuning.told;
    leave_out_recorded();
  }

  std::vector<TuningRecord> run() {
    const Stopwatch watch;
    size_t plans = 0;
    for (const TunableFusion& fusion : fusions_) {
      for (const TunableRange& range : fusion.ranges) plans += range.plans.size();
    }
    log_.begin(work_.partition, work_.machine, fusions_.size(), of_, plans);
    for (const TunableFusion& fusion : fusions_) tune_fusion(fusion);
    if (work_.options.whole_partition && !contests_.empty()) decide_in_partition();
    log_.end(work_.partition, watch.milliseconds() / 1000, contests_.size());
    return records();
  }

 private:
  // What records there are decide without being measured again.
  void leave_out_recorded() {
    for (TunableFusion& fusion : fusions_) {
      if (settings_.records) {
        const auto known = settings_.records->find(fusion.key.fingerprint).records;
        std::erase_if(fusion.ranges, [&](const TunableRange& range) {
          return std::ranges::any_of(
              known, [&](const TuningRecord& record) { return record.rows.covers(range.rows); });
        });
      }
      of_ += fusion.ranges.size();
    }
    std::erase_if(fusions_, [](const TunableFusion& fusion) { return fusion.ranges.empty(); });
  }

  // Plans of all ranges are compiled at once, then one range after the other is measured.
  void tune_fusion(const TunableFusion& fusion) {
    const Stopwatch watch;
    std::vector<std::unique_ptr<RangeTrial>> trials;
    struct Place {
      RangeTrial* trial;
      size_t plan;
    };
    std::vector<Place> places;
    for (const TunableRange& range : fusion.ranges) {
      try {
        trials.push_back(
            std::make_unique<RangeTrial>(fused_, fusion, range, device_, work_.options));
      } catch (const UserError& error) {
        ++done_;
        log_.note(
            fmt::format("{}, {}: {}", fusion.key.text, range.rows.text("rows"), error.what()));
        continue;
      }
      for (size_t i = 0; i < range.plans.size(); ++i) places.push_back({trials.back().get(), i});
    }
    parallel_for_each(static_cast<int64_t>(places.size()), [&](int64_t i) {
      places[static_cast<size_t>(i)].trial->compile(places[static_cast<size_t>(i)].plan);
    });
    double compiled = watch.milliseconds();
    for (auto& trial : trials) {
      const Stopwatch own;
      trial->measure(log_);
      ++done_;
      decide_alone(*trial, (own.milliseconds() + compiled) / 1000);
      compiled = 0;
      trial.reset();
    }
  }

  void decide_alone(const RangeTrial& trial, double seconds) {
    const std::vector<PlanResult>& results = trial.results();
    const TunableRange& range = trial.range();
    std::vector<size_t> order;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].ok() && results[i].microseconds > 0) order.push_back(i);
    }
    std::ranges::sort(order, {}, [&](size_t plan) { return results[plan].microseconds; });
    const auto measured = [&](size_t plan) {
      const WantedKernel& kernel = range.plans[plan].kernel;
      return MeasuredKernel{{kernel.candidate, kernel.config},
                            results[plan].ok() ? results[plan].microseconds : 0};
    };
    const FusionKey& fusion = trial.fusion().key;
    if (order.empty() || !trial.objection().empty()) {
      log_.note(fmt::format("{}, {}: nothing is recorded, {}", fusion.text, range.rows.text("rows"),
                            order.empty() ? "no plan ran right" : trial.objection()));
      return;
    }
    const bool untuned_ran = results[range.untuned].ok();
    size_t best = order.front();
    if (untuned_ran && results[best].microseconds > kGains * results[range.untuned].microseconds) {
      best = range.untuned;
    }
    Contest contest{{}, range.plans.front().plan.rows, trial.at_rows()};
    contest.record = record_of(fusion, range, measured(best), measured(range.untuned));
    for (const size_t plan : order) {
      if (plan == best || contest.rivals.size() >= kMostRivals) continue;
      if (results[plan].microseconds > kRival * results[order.front()].microseconds) continue;
      contest.rivals.push_back(measured(plan));
    }
    log_.range(fusion, range.rows, trial.at_rows(),
               {measured(best), measured(range.untuned), contest.decided_by, seconds, done_, of_});
    contests_.push_back(std::move(contest));
    if (work_.keep) work_.keep({contests_.back().record});
  }

  TuningRecord record_of(const FusionKey& fusion, const TunableRange& range,
                         const MeasuredKernel& best, const MeasuredKernel& untuned) const {
    TuningRecord record;
    record.fusion = fusion.text;
    record.fingerprint = fusion.fingerprint;
    record.rows = range.rows;
    record.machine = work_.machine;
    // Engines of another cuDNN have other numbers.
    if (!best.kernel.candidate.starts_with("cudnn")) record.machine.library.clear();
    record.kernel = best.kernel;
    record.microseconds = best.microseconds;
    if (untuned.microseconds > 0) {  // else nobody may come back to it
      record.untuned = untuned.kernel;
      record.untuned_microseconds = untuned.microseconds;
    }
    record.date = utc_now();
    return record;
  }

  void decide_in_partition() {
    const std::vector<Contest> before = contests_;
    PartitionTrial trial(fused_, settings_, device_, work_.machine, work_.known, work_.options);
    if (const std::string why_not = trial.decide(contests_); !why_not.empty()) {
      log_.note("some choices were made without the whole partition: " + why_not);
    }
    const std::string date = utc_now();
    for (size_t i = 0; i < contests_.size(); ++i) {
      TuningRecord& record = contests_[i].record;
      if (record.kernel == before[i].record.kernel) continue;
      record.date = date;
      log_.range({record.fusion, record.fingerprint}, record.rows, contests_[i].at_rows,
                 {{record.kernel, record.microseconds},
                  {record.untuned, record.untuned_microseconds},
                  contests_[i].decided_by,
                  0,
                  done_,
                  of_});
    }
    if (work_.keep) work_.keep(records());
  }

  std::vector<TuningRecord> records() const {
    std::vector<TuningRecord> records;
    for (const Contest& contest : contests_) records.push_back(contest.record);
    return records;
  }

  const ir::Graph& fused_;
  Settings settings_;
  std::shared_ptr<device::Device> device_;
  TuneLog& log_;
  const TuningWork& work_;
  std::vector<TunableFusion> fusions_;
  std::vector<Contest> contests_;
  size_t done_ = 0, of_ = 0;
};

}  // namespace

std::vector<TuningRecord> tune(const ir::Graph& fused, const Settings& settings,
                               const std::shared_ptr<device::Device>& device, TuneLog& log,
                               const TuningWork& work) {
  return Tuner(fused, settings, device, log, work).run();
}

}  // namespace tenon::kernels
