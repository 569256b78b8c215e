#include "kernels/tuner/range_trial.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/thread_pool.h"
#include "graph_partitioner/ir/fusions.h"
#include "kernels/build_program.h"
#include "kernels/llvm/scaled_dot/gemm_problem.h"
#include "kernels/planning/before_wait.h"
#include "kernels/selector.h"
#include "kernels/tuner/median.h"
#include "kernels/tuner/trial_weights.h"

namespace tenon::kernels {
namespace {

constexpr double kTimesL2 = 2.5;  // bytes that copies read, so that none finds its own in L2
constexpr double kSlow = 1.6;     // times the fastest: not measured again
constexpr double kClose = 1.04;   // times the fastest: measured in twice as many rounds more
constexpr double kGains = 0.995;  // times the fastest before: worth to look on from there
constexpr double kMicrosecondsOfRound = 400, kMicrosecondsOfAll = 200'000;
constexpr int kFewestRounds = 3;

// In a model of several products whose rows the caller brings, all read before they wait. Returns
// how many run side by side there; nothing where this one waits for the one before.
std::optional<int> launches_together(const ir::Graph& graph, const ir::Node& node,
                                     const Settings& settings) {
  const int64_t count = count_early_products(graph, settings);
  if (count < 2 || !is_early_product(graph, node, settings)) return std::nullopt;
  return static_cast<int>(std::min<int64_t>(count, kManyLaunches));
}

}  // namespace

// What runs while plans are compared. Left behind where something does not end: giving memory back
// would wait for it.
struct RangeTrial::Running {
  std::shared_ptr<Redzones> redzones;
  std::unique_ptr<TrialMemory> memory, preview;
  std::shared_ptr<WeightPool> weights;
  std::vector<std::unique_ptr<Trial>> trials;

  // Later plans do not share what a plan that did wrong may have written to.
  void renew_weights() {
    weights =
        std::make_shared<WeightPool>([redzones = redzones](size_t bytes, std::string_view what) {
          return redzones->make(bytes, std::string(what));
        });
  }

  // Kept until the process ends: not lost, and never destroyed.
  void leave() {
    static auto& left = *new std::vector<Running>;
    if (memory != nullptr) left.push_back(std::move(*this));
  }
};

RangeTrial::RangeTrial(const ir::Graph& fused, const TunableFusion& fusion, TunableRange range,
                       std::shared_ptr<device::Device> device, const TunerOptions& options)
    : fused_(fused),
      fusion_(fusion),
      range_(std::move(range)),
      device_(std::move(device)),
      options_(options) {
  const Dim& rows = range_.plans.front().plan.rows;
  const std::optional<int64_t> at_rows = rows_measured(fused, rows, range_.rows);
  const auto sizes = at_rows ? sizes_at(fused, rows, *at_rows) : std::nullopt;
  if (!sizes) throw UserError("no sizes of the model come to these rows");
  at_rows_ = *at_rows;
  const auto l2 = static_cast<double>(device_->description().l2_bytes);
  const ir::Node& node = fused.node(fusion.nodes.front());
  const Settings& settings = *range_.plans.front().settings;
  trial_ = make_trial_graph(fused, node, *sizes, static_cast<int64_t>(kTimesL2 * l2),
                            options.rules.most_copies,
                            launches_together(fused, node, settings).value_or(kManyLaunches));
  make_room();
  preview_ = make_trial_graph(fused, node, *sizes, 0, 1, 1);
  const std::string& likely = range_.plans[range_.untuned].kernel.candidate;
  for (size_t i = 0; i < previews_.size(); ++i) {
    previews_[i] = range_.plans[i].kernel.candidate != likely;
  }
}

void RangeTrial::make_room() {
  const size_t plans = range_.plans.size();
  results_.resize(plans);
  settings_.resize(plans);
  programs_.resize(plans);
  previews_.resize(plans);
  kernels_.resize(plans);
  // Estimates, and a fit of the costs, are for what is measured here.
  for (TunablePlan& plan : range_.plans) set_overlapping(plan.problem, trial_.together);
}

LoggedPlan RangeTrial::logged(size_t plan) const {
  return {fusion_.key, range_.rows, at_rows_, range_.plans[plan], plan == range_.untuned};
}

Settings RangeTrial::trial_settings(const TunablePlan& plan) const {
  Settings settings = *plan.settings;
  const ir::Node& node = fused_.node(fusion_.nodes.front());
  settings.tuning.reads_inputs_before_wait = launches_together(fused_, node, settings).has_value();
  settings.tuning.candidate = plan.kernel.candidate;
  // Where it takes some rows only, others take the rest.
  settings.tuning.candidate_rows = plan.plan.takes.is_all() ? RowRange{} : range_.rows;
  return settings;
}

// A plan that the graph of a trial does not get is not measured as another one.
Support RangeTrial::is_offered(const TunablePlan& plan, const ir::Graph& graph,
                               const Settings& settings) const {
  const Choice choice = select(graph, graph.node(graph.order().front()), settings);
  for (const PartChoice& part : choice.parts) {
    if (part.candidate != plan.kernel.candidate || part.plan.ranges.empty()) continue;
    for (const RangePlan& known : part.plan.ranges) {
      if (!known.rows.covers({at_rows_, at_rows_})) continue;
      if (known.kernels.front().config == plan.kernel.config) return Support::yes();
    }
  }
  return Support::no(fmt::format("it is not offered outside of its model: {}",
                                 choice.ok() ? choice.chosen() + " is" : choice.reason()));
}

void RangeTrial::set_failure(size_t plan, TrialStatus status, std::string reason) {
  results_[plan].failure = {status, std::move(reason)};
  programs_[plan].reset();
}

void RangeTrial::compile(size_t plan) {
  const TunablePlan& tunable = range_.plans[plan];
  try {
    const auto settings = std::make_shared<const Settings>(trial_settings(tunable));
    settings_[plan] = settings;
    const ir::Graph& graph = previews_[plan] ? preview_.graph : trial_.graph;
    if (const Support offered = is_offered(tunable, graph, *settings); !offered) {
      return set_failure(plan, TrialStatus::kNotOffered, offered.reason);
    }
    auto program = std::make_unique<Program>(make_program(graph, *settings));
    if (!previews_[plan]) separate_groups(trial_, *program);
    name_shared_weights(*program);
    if (options_.alter) options_.alter(tunable, *program);
    load_kernels(plan, *program);
    if (results_[plan].ok()) programs_[plan] = std::move(program);
  } catch (const device::DeviceLost& lost) {
    set_failure(plan, TrialStatus::kRunFailed, lost.what());
  } catch (const std::exception& error) {
    set_failure(plan, TrialStatus::kCompileFailed, error.what());
  }
}

// Machine code is made here, on as many threads as plans are compiled on.
void RangeTrial::load_kernels(size_t plan, const Program& program) {
  for (const auto& code : program.gpu_code) {
    auto loaded = device_->load(*code, settings_[plan]->kernel_cache.get());
    if (loaded->local_bytes > 0 && plan != range_.untuned) {
      set_failure(
          plan, TrialStatus::kSpills,
          fmt::format("{} bytes of a thread do not fit its registers", loaded->local_bytes));
    }
    kernels_[plan].push_back(std::move(loaded));
  }
}

bool RangeTrial::fits_at_once() const {
  std::vector<const Program*> programs;
  for (const auto& program : programs_) {
    if (program) programs.push_back(program.get());
  }
  return weight_bytes_together(programs) < device_->memory().free / 2;
}

// True: it may be timed.
bool RangeTrial::check(size_t plan, TuneLog& log, Running& running) {
  if (!programs_[plan]) return false;
  if (std::string why_not = log.why_not(logged(plan)); !why_not.empty()) {
    set_failure(plan, TrialStatus::kRefused, std::move(why_not));
    return false;
  }
  log.trying(logged(plan));
  TrialMemory& memory = previews_[plan] ? *running.preview : *running.memory;
  try {
    running.trials[plan] =
        std::make_unique<Trial>(device_, *settings_[plan]->gpu, std::move(*programs_[plan]), memory,
                                options_.rules, settings_[plan]->kernel_cache, running.weights);
    programs_[plan].reset();
    results_[plan].failure = running.trials[plan]->run_once();
  } catch (const DeviceStuck& stuck) {
    set_failure(plan, TrialStatus::kDeadline, stuck.what());
    log.tried(logged(plan), results_[plan].failure, 0);
    throw;
  } catch (const std::exception& error) {
    set_failure(plan, TrialStatus::kRunFailed, error.what());
  }
  if (results_[plan].ok()) judge(plan, memory);
  if (!results_[plan].ok()) {
    const TrialStatus status = results_[plan].failure.status;
    if (status != TrialStatus::kDeadline) running.trials[plan].reset();
    if (status == TrialStatus::kOutOfBounds || status == TrialStatus::kWrongResult) {
      running.renew_weights();
    }
    return false;
  }
  return true;
}

void RangeTrial::judge(size_t plan, TrialMemory& memory) {
  std::vector<HostOutput> outputs = memory.read_outputs(trial_.outputs_each());
  if (trusted_.empty()) {
    trusted_ = std::move(outputs);
    trusted_plan_ = plan;
    return;
  }
  std::string difference = find_difference(outputs, trusted_, settings_[plan]->precision);
  if (difference.empty()) {
    agreeing_ += plan == trusted_plan_ ? 0 : 1;
    return;
  }
  ++differing_;
  results_[plan].failure = {TrialStatus::kWrongResult, std::move(difference)};
}

void RangeTrial::call_slow(size_t plan, double fastest) {
  results_[plan].failure = {
      TrialStatus::kSlow,
      fmt::format("{:.1f} times as long as the fastest{}", results_[plan].microseconds / fastest,
                  previews_[plan] ? ", with its weights in L2" : "")};
}

// Takes the time of each once.
double RangeTrial::fastest(const std::vector<size_t>& plans, Running& running) {
  double fastest = std::numeric_limits<double>::max();
  for (const size_t plan : plans) {
    const int copies = previews_[plan] ? 1 : trial_.copies;
    running.trials[plan]->microseconds(1, copies);
    results_[plan].microseconds = running.trials[plan]->microseconds(2, copies);
    if (!previews_[plan]) fastest = std::min(fastest, results_[plan].microseconds);
  }
  return fastest;
}

void RangeTrial::time_in_turns(std::vector<size_t> plans, Running& running) {
  const auto time = [&](size_t plan, int runs) {
    return running.trials[plan]->microseconds(runs, trial_.copies);
  };
  double fastest = this->fastest(plans, running);
  std::erase_if(plans, [&](size_t plan) {
    if (results_[plan].microseconds <= kSlow * fastest || plan == range_.untuned) return false;
    call_slow(plan, fastest);
    return true;
  });
  std::vector<std::vector<double>> times(results_.size());
  const auto measure = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (const size_t plan : plans) {
        const double whole = std::max(results_[plan].microseconds * trial_.copies, 1.0);
        times[plan].push_back(
            time(plan, std::clamp(static_cast<int>(kMicrosecondsOfRound / whole), 1, 20)));
      }
    }
    for (const size_t plan : plans) results_[plan].microseconds = median(times[plan]);
  };
  // Long ones are told apart soon.
  const double turn = std::accumulate(
      plans.begin(), plans.end(), 1.0,
      [&](double sum, size_t plan) { return sum + results_[plan].microseconds * trial_.copies; });
  const int rounds = std::min(options_.rules.rounds,
                              std::max(kFewestRounds, static_cast<int>(kMicrosecondsOfAll / turn)));
  measure(rounds);
  for (const size_t plan : plans) fastest = std::min(fastest, results_[plan].microseconds);
  std::erase_if(plans, [&](size_t plan) { return results_[plan].microseconds > kClose * fastest; });
  if (plans.size() > 1) measure(2 * rounds);
}

// What hangs holds the stream and the memory of all: they are left to it, and the others begin
// anew.
void RangeTrial::begin(Running& running) const {
  running.leave();
  running = {};
  running.redzones = std::make_shared<Redzones>(device_);
  running.memory =
      std::make_unique<TrialMemory>(device_, trial_.inputs, trial_.outputs, running.redzones);
  running.preview =
      std::make_unique<TrialMemory>(device_, preview_.inputs, preview_.outputs, running.redzones);
  running.renew_weights();
  running.trials.resize(range_.plans.size());
}

// Returns those that are ready to be timed. Where not all fit the device's memory each is timed at
// once, and gone.
std::vector<size_t> RangeTrial::check_all(std::deque<size_t> open, TuneLog& log, Running& running) {
  const bool at_once = fits_at_once();
  std::vector<size_t> ready;
  while (!open.empty()) {
    const size_t plan = open.front();
    open.pop_front();
    if (check(plan, log, running)) {
      ready.push_back(plan);
      if (at_once || previews_[plan]) continue;
      time_in_turns({plan}, running);
      running.trials[plan].reset();
      std::erase(ready, plan);
    } else if (results_[plan].failure.status == TrialStatus::kDeadline) {
      begin(running);
      for (const size_t again : ready) compile(again);
      open.insert(open.begin(), ready.begin(), ready.end());
      ready.clear();
    }
  }
  return ready;
}

// Previews that are about as fast as the others run in a row of copies, too.
std::vector<size_t> RangeTrial::take_previews(std::vector<size_t> ready, TuneLog& log,
                                              Running& running) {
  double fastest = this->fastest(ready, running);
  for (const PlanResult& result : results_) {  // those that were timed at once
    if (result.ok() && result.microseconds > 0 && ready.empty()) {
      fastest = std::min(fastest, result.microseconds);
    }
  }
  std::deque<size_t> again;
  std::erase_if(ready, [&](size_t plan) {
    if (!previews_[plan]) return false;
    running.trials[plan].reset();
    if (results_[plan].microseconds > kSlow * fastest && plan != range_.untuned) {
      call_slow(plan, fastest);
    } else {
      again.push_back(plan);
    }
    return true;
  });
  for (const size_t plan : again) {
    previews_[plan] = false;
    compile(plan);
  }
  const std::vector<size_t> more = check_all(std::move(again), log, running);
  ready.insert(ready.end(), more.begin(), more.end());
  std::erase_if(ready, [&](size_t plan) { return running.trials[plan] == nullptr; });
  return ready;
}

// Plans that the times so far make promising, beside the fastest of those. False: there are none.
bool RangeTrial::measure_more(TuneLog& log, Running& running) {
  std::vector<double> times;
  for (size_t plan = 0; plan < results_.size(); ++plan) {
    times.push_back(previews_[plan] ? 0 : results_[plan].microseconds);
  }
  std::vector<TunablePlan> more = options_.more_plans(fused_, fusion_, range_, times, at_rows_,
                                                      static_cast<size_t>(options_.more));
  if (more.empty()) return false;
  const size_t first = range_.plans.size();
  std::ranges::move(more, std::back_inserter(range_.plans));
  make_room();
  running.trials.resize(range_.plans.size());
  parallel_for_each(static_cast<int64_t>(more.size()),
                    [&](int64_t i) { compile(first + static_cast<size_t>(i)); });
  std::deque<size_t> added(more.size());
  std::iota(added.begin(), added.end(), first);
  std::vector<size_t> ready = check_all(std::move(added), log, running);
  if (ready.empty()) return true;
  for (const size_t close : close_ones(running)) {
    if (std::ranges::count(ready, close) == 0) ready.push_back(close);
  }
  time_in_turns(std::move(ready), running);
  return true;
}

double RangeTrial::fastest_so_far() const {
  double fastest = std::numeric_limits<double>::max();
  for (size_t plan = 0; plan < results_.size(); ++plan) {
    const bool counts = results_[plan].ok() && !previews_[plan] && results_[plan].microseconds > 0;
    if (counts) fastest = std::min(fastest, results_[plan].microseconds);
  }
  return fastest;
}

// Those that were timed and are about the fastest.
std::vector<size_t> RangeTrial::close_ones(const Running& running) const {
  std::vector<size_t> timed;
  for (size_t plan = 0; plan < results_.size(); ++plan) {
    if (running.trials[plan] == nullptr || !results_[plan].ok()) continue;
    if (results_[plan].microseconds > 0) timed.push_back(plan);
  }
  const double fastest = fastest_so_far();
  std::erase_if(timed, [&](size_t plan) { return results_[plan].microseconds > kClose * fastest; });
  return timed;
}

const std::vector<PlanResult>& RangeTrial::measure(TuneLog& log) {
  Running running;
  begin(running);
  std::deque<size_t> order(range_.plans.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // The plainest code is trusted: of the candidate that stands last in its table.
  std::ranges::rotate(order, order.end() - 1);
  try {
    std::vector<size_t> ready = check_all(std::move(order), log, running);
    ready = take_previews(std::move(ready), log, running);
    if (!ready.empty()) time_in_turns(std::move(ready), running);
    double before = fastest_so_far();
    for (int time = 0; time < options_.times_more && measure_more(log, running); ++time) {
      const double now = fastest_so_far();
      if (now > kGains * before) break;
      before = now;
    }
  } catch (const DeviceStuck&) {
    running.leave();
    throw;
  }
  const TrialFailure& untuned = results_[range_.untuned].failure;
  if (agreeing_ == 0 && differing_ > 0) {
    objection_ = "no plan gives what the trusted one gives";
  } else if (untuned.status == TrialStatus::kNotOffered) {
    objection_ = "what runs untuned could not be measured: " + untuned.reason;
  }
  for (size_t plan = 0; plan < results_.size(); ++plan) {
    if (!log.why_not(logged(plan)).empty()) continue;
    log.tried(logged(plan), results_[plan].failure, results_[plan].microseconds);
  }
  return results_;
}

}  // namespace tenon::kernels
