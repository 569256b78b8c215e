#include "kernels/llvm/scaled_dot/gemm_shortlist.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "codegen/cost_factors.h"
#include "kernels/llvm/scaled_dot/gemm_estimate.h"

namespace tenon::kernels {
namespace {

constexpr uint64_t kModels = 64;
constexpr uint64_t kFirstSeed = 1000;  // any: the same models at each call

// Times of all configs by one cost model.
struct Model {
  std::vector<double> microseconds;
  double best_listed = std::numeric_limits<double>::max();

  double gain_by(size_t config) const {
    return microseconds[config] < best_listed ? std::log(best_listed / microseconds[config]) : 0;
  }
  void list(size_t config) { best_listed = std::min(best_listed, microseconds[config]); }
};

std::vector<Model> make_models(const std::vector<GemmConfig>& configs,
                               const codegen::GpuCosts& costs) {
  std::vector<Model> models(kModels);
  for (uint64_t i = 0; i < kModels; ++i) {
    const codegen::GpuCosts wrong = codegen::with_factors(costs, kFirstSeed + i);
    for (const GemmConfig& config : configs) {
      models[i].microseconds.push_back(estimate_gemm(config, wrong));
    }
  }
  return models;
}

}  // namespace

void put_shortlist_first(std::vector<GemmConfig>& configs, size_t count,
                         const codegen::GpuCosts& costs) {
  if (configs.size() <= count || count < 2) return;
  std::vector<Model> models = make_models(configs, costs);
  std::vector<size_t> order(configs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (Model& model : models) model.list(0);
  const auto gain_by = [&](size_t config) {
    double gain = 0;
    for (const Model& model : models) gain += model.gain_by(config);
    return gain;
  };
  // Where nothing more is gained the first one that is left comes next, by estimate.
  for (size_t listed = 1; listed < count; ++listed) {
    auto most = order.begin() + static_cast<std::ptrdiff_t>(listed);
    double gain = gain_by(*most);
    for (auto each = most + 1; each != order.end(); ++each) {
      if (const double own = gain_by(*each); own > gain) {
        most = each;
        gain = own;
      }
    }
    for (Model& model : models) model.list(*most);
    std::rotate(order.begin() + static_cast<std::ptrdiff_t>(listed), most, most + 1);
  }
  std::vector<GemmConfig> ordered;
  for (const size_t place : order) ordered.push_back(std::move(configs[place]));
  configs = std::move(ordered);
}

}  // namespace tenon::kernels
