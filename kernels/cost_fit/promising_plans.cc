// Importance sampling: models are drawn around the costs, and count by how well they agree with
// what was measured. What is found next is what gains most over all that is known, in their mean.
#include "kernels/cost_fit/promising_plans.h"

#include <algorithm>
#include <cmath>

#include "codegen/cost_factors.h"

namespace tenon::kernels {
namespace {

constexpr uint64_t kModels = 256;
constexpr uint64_t kFirstSeed = 5000;  // any: the same models at each call
// How far times may be from those of a model that is right; further, until so many have a say.
constexpr double kLeastSpread = 0.04, kWider = 1.25;
constexpr double kFewestModels = 6;
constexpr double kLeastGain = 1e-4;  // of the logarithm of the time

struct Model {
  double squares = 0;              // of its errors, but for the factor
  double weight = 0;               // all together: 1
  double gained = 0;               // by the plans that were found
  std::vector<double> gains = {};  // of each other plan: log of the fastest time over its own

  double gain_by(size_t plan) const { return weight * std::max(0.0, gains[plan] - gained); }
};

Model make_model(const codegen::GpuCosts& costs, const std::vector<MeasuredPlan>& measured,
                 const std::vector<MeasuredPlan>& others, double fastest) {
  std::vector<double> errors;
  double factor = 0;  // its logarithm
  for (const MeasuredPlan& plan : measured) {
    errors.push_back(std::log(plan.microseconds / plan.estimate(costs)));
    factor += errors.back() / static_cast<double>(measured.size());
  }
  Model model;
  for (const double error : errors) model.squares += (error - factor) * (error - factor);
  for (const MeasuredPlan& plan : others) {
    model.gains.push_back(std::log(fastest / plan.estimate(costs)) - factor);
  }
  return model;
}

void weigh(std::vector<Model>& models) {
  const double least = std::ranges::min(models, {}, &Model::squares).squares;
  double have_a_say = 0;
  for (double spread = kLeastSpread; have_a_say < kFewestModels; spread *= kWider) {
    double sum = 0, squares = 0;
    for (Model& model : models) {
      model.weight = std::exp((least - model.squares) / (2 * spread * spread));
      sum += model.weight;
    }
    for (Model& model : models) {
      model.weight /= sum;
      squares += model.weight * model.weight;
    }
    have_a_say = 1 / squares;
  }
}

std::vector<Model> make_models(const std::vector<MeasuredPlan>& measured,
                               const std::vector<MeasuredPlan>& others,
                               const codegen::GpuCosts& costs) {
  const double fastest = std::ranges::min(measured, {}, &MeasuredPlan::microseconds).microseconds;
  std::vector<Model> models;
  for (uint64_t i = 0; i < kModels; ++i) {
    const codegen::GpuCosts wrong = codegen::with_factors(costs, kFirstSeed + i);
    models.push_back(make_model(wrong, measured, others, fastest));
  }
  weigh(models);
  return models;
}

}  // namespace

std::vector<size_t> promising_plans(const std::vector<MeasuredPlan>& measured,
                                    const std::vector<MeasuredPlan>& others,
                                    const codegen::GpuCosts& costs, size_t count) {
  if (measured.size() < 2) return {};  // they say nothing of each other
  std::vector<Model> models = make_models(measured, others, costs);
  std::vector<size_t> found;
  while (found.size() < count) {
    size_t best = 0;
    double most = 0;
    for (size_t plan = 0; plan < others.size(); ++plan) {
      double gain = 0;
      for (const Model& model : models) gain += model.gain_by(plan);
      if (gain <= most) continue;
      best = plan;
      most = gain;
    }
    if (most < kLeastGain) break;
    for (Model& model : models) model.gained = std::max(model.gained, model.gains[best]);
    found.push_back(best);
  }
  return found;
}

}  // namespace tenon::kernels
