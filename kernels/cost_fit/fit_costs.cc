// Pattern search (Hooke and Jeeves) over the logarithms of the constants: each in turn goes a step
// up or down where that helps, then all go once more the way that they went together, which follows
// valleys where one constant makes up for another. Steps halve where nothing helps.
#include "kernels/cost_fit/fit_costs.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "codegen/cost_factors.h"

namespace tenon::kernels {
namespace {

// Beyond it an error counts by its size, not its square: a plan that the model does not understand
// must not pull all others.
constexpr double kOutlier = 0.1;
// Per constant: those that the plans do not tell apart stay where they were.
constexpr double kPullToTable = 1e-4;
constexpr double kFirstStep = 0.4, kLastStep = 0.002;
constexpr int kMostSweeps = 600;
constexpr uint64_t kStarts = 4;

double loss_of(double error) {
  const double size = std::abs(error);
  return size <= kOutlier ? size * size : kOutlier * (2 * size - kOutlier);
}

double error_of(const MeasuredPlan& plan, const codegen::GpuCosts& costs) {
  return std::log(plan.estimate(costs) / plan.microseconds);
}

struct Constant {
  std::string name;
  double* value;
  double table;
  double log = 0;             // of value / table
  std::vector<size_t> plans;  // that depend on it

  void set(double wanted) {
    const double most = std::log(kMostCostChange);
    log = std::clamp(wanted, -most, most);
    *value = table * std::exp(log);
  }
};

class CostFitter {
 public:
  CostFitter(const codegen::GpuCosts& table, const std::vector<MeasuredPlan>& plans)
      : costs_(table), plans_(plans), losses_(plans.size()) {
    visit_costs(costs_, [&](std::string_view name, double& value) {
      all_.push_back({std::string(name), &value, value, 0, {}});
    });
    for (Constant& constant : all_) find_plans(constant);
    for (size_t i = 0; i < plans_.size(); ++i) losses_[i] = loss_of(error_of(plans_[i], costs_));
  }

  // From the table, and from a few places around it: a search may end in a valley of its own.
  void fit() {
    std::vector<double> best;
    double least = 0;
    for (uint64_t start = 0; start < kStarts; ++start) {
      begin_at(start);
      search();
      const double loss = whole_loss();
      if (!best.empty() && loss >= least) continue;
      best = logs();
      least = loss;
    }
    set_logs(best);
    for (Constant& constant : all_) round(constant);
  }

  CostFit result() const {
    CostFit fit{
        .costs = costs_, .fitted = {}, .kept = {}, .bounded = {}, .before = {}, .after = {}};
    for (const Constant& constant : all_) {
      (constant.plans.empty() ? fit.kept : fit.fitted).push_back(constant.name);
      const bool is_far = std::abs(constant.log) > 0.99 * std::log(kMostCostChange);
      if (is_far) fit.bounded.push_back(constant.name);
    }
    return fit;
  }

 private:
  // Far steps tell: what counts is the larger of two times, and may be the other one here.
  void find_plans(Constant& constant) {
    std::vector<double> here;
    for (const MeasuredPlan& plan : plans_) here.push_back(plan.estimate(costs_));
    std::vector<bool> depends(plans_.size());
    for (const double factor : {1 / kMostCostChange, kMostCostChange}) {
      *constant.value = constant.table * factor;
      for (size_t i = 0; i < plans_.size(); ++i) {
        if (plans_[i].estimate(costs_) != here[i]) depends[i] = true;
      }
    }
    *constant.value = constant.table;
    for (size_t i = 0; i < plans_.size(); ++i) {
      if (depends[i]) constant.plans.push_back(i);
    }
  }

  static double pull(const Constant& constant) {
    return kPullToTable * constant.log * constant.log;
  }

  double known_loss(const Constant& constant) const {
    double sum = pull(constant);
    for (const size_t i : constant.plans) sum += losses_[i];
    return sum;
  }

  double loss_now(const Constant& constant) const {
    double sum = pull(constant);
    for (const size_t i : constant.plans) sum += loss_of(error_of(plans_[i], costs_));
    return sum;
  }

  void keep(const Constant& constant) {
    for (const size_t i : constant.plans) losses_[i] = loss_of(error_of(plans_[i], costs_));
  }

  void begin_at(uint64_t start) {
    for (Constant& constant : all_) {
      if (constant.plans.empty()) continue;
      constant.set(start == 0 ? 0 : std::log(codegen::cost_factor(start, constant.name)));
    }
    for (size_t i = 0; i < plans_.size(); ++i) losses_[i] = loss_of(error_of(plans_[i], costs_));
  }

  void search() {
    double step = kFirstStep;
    std::vector<double> before = logs();
    for (int sweeps = 0; sweeps < kMostSweeps && step >= kLastStep; ++sweeps) {
      if (!sweep(step)) {
        step /= 2;
        continue;
      }
      const std::vector<double> here = logs();
      go_on(before, here);
      before = here;
    }
  }

  bool sweep(double step) {
    bool improved = false;
    for (Constant& constant : all_) {
      if (constant.plans.empty()) continue;
      const double known = known_loss(constant), from = constant.log;
      for (const double way : {step, -step}) {
        constant.set(from + way);
        if (constant.log != from && loss_now(constant) < known * (1 - 1e-9)) {
          keep(constant);
          improved = true;
          break;
        }
        constant.set(from);
      }
    }
    return improved;
  }

  // Once more from `before` to `here`, and twice as far each time that this helps.
  void go_on(const std::vector<double>& before, const std::vector<double>& here) {
    std::vector<double> best = here;
    double least = whole_loss();
    for (double times = 1; times <= 16; times *= 2) {
      std::vector<double> wanted = here;
      for (size_t i = 0; i < here.size(); ++i) wanted[i] += times * (here[i] - before[i]);
      set_logs(wanted);
      const double loss = whole_loss();
      if (loss >= least) break;
      least = loss;
      best = logs();
    }
    set_logs(best);
    for (size_t i = 0; i < plans_.size(); ++i) losses_[i] = loss_of(error_of(plans_[i], costs_));
  }

  double whole_loss() const {
    double sum = 0;
    for (const Constant& constant : all_) sum += pull(constant);
    for (const MeasuredPlan& plan : plans_) sum += loss_of(error_of(plan, costs_));
    return sum;
  }

  std::vector<double> logs() const {
    std::vector<double> logs;
    for (const Constant& constant : all_) logs.push_back(constant.log);
    return logs;
  }

  void set_logs(const std::vector<double>& logs) {
    for (size_t i = 0; i < logs.size(); ++i) {
      if (!all_[i].plans.empty()) all_[i].set(logs[i]);
    }
  }

  // What a table shows is what is judged.
  static void round(Constant& constant) {
    if (constant.log != 0) *constant.value = std::stod(fmt::format("{:.3g}", *constant.value));
  }

  codegen::GpuCosts costs_;
  const std::vector<MeasuredPlan>& plans_;
  std::vector<double> losses_;  // of the plans, with these costs
  std::vector<Constant> all_;
};

ModelError error_among(std::vector<double> sizes) {
  if (sizes.empty()) return {};
  std::ranges::sort(sizes);
  const size_t last = sizes.size() - 1;
  return {sizes.size(), sizes[last / 2], sizes[last * 9 / 10]};
}

void add_regret(const codegen::GpuCosts& costs, const std::vector<MeasuredPlan>& plans,
                ModelQuality& quality) {
  struct Group {
    size_t plans = 0;
    double expected = 0, taken = 0, best = 0;
  };
  std::map<int64_t, Group> groups;
  for (const MeasuredPlan& plan : plans) {
    Group& group = groups[plan.group];
    const double expected = plan.estimate(costs);
    const bool is_first = group.plans++ == 0;
    if (is_first || plan.microseconds < group.best) group.best = plan.microseconds;
    if (is_first || expected < group.expected) {
      group.expected = expected;
      group.taken = plan.microseconds;
    }
  }
  double logs = 0;
  for (const auto& [number, group] : groups) {
    if (group.plans < 2) continue;
    const double regret = group.taken / group.best;
    ++quality.groups;
    logs += std::log(regret);
    quality.worst_regret = std::max(quality.worst_regret, regret);
  }
  if (quality.groups > 0)
    quality.mean_regret = std::exp(logs / static_cast<double>(quality.groups));
}

}  // namespace

ModelQuality judge_costs(const codegen::GpuCosts& costs, const std::vector<MeasuredPlan>& plans) {
  std::vector<double> all;
  std::map<std::string_view, std::vector<double>> by_skeleton;
  for (const MeasuredPlan& plan : plans) {
    const double size = std::abs(error_of(plan, costs));
    all.push_back(size);
    by_skeleton[name(plan.skeleton)].push_back(size);
  }
  ModelQuality quality;
  quality.all = error_among(std::move(all));
  for (auto& [skeleton, sizes] : by_skeleton) {
    quality.by_skeleton[skeleton] = error_among(std::move(sizes));
  }
  add_regret(costs, plans, quality);
  return quality;
}

CostFit fit_costs(const codegen::GpuCosts& table, const std::vector<MeasuredPlan>& plans) {
  CostFitter fitter(table, plans);
  fitter.fit();
  CostFit fit = fitter.result();
  fit.before = judge_costs(table, plans);
  fit.after = judge_costs(fit.costs, plans);
  return fit;
}

}  // namespace tenon::kernels
