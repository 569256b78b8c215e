#include "kernels/tuner/nearest_configs.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tenon::kernels {
namespace {

constexpr double kFarthest = 2;  // in powers of two, of all numbers together

struct Step {
  Knob knob;
  double weight;  // less for what a config's other numbers all but decide
};
constexpr Step kSteps[] = {{Knob::kTileN, 1},     {Knob::kSplitK, 1},      {Knob::kWarpSplitK, 1},
                           {Knob::kResidentX, 1}, {Knob::kKPerStage, 0.5}, {Knob::kCtasPerSm, 0.5},
                           {Knob::kStages, 0.25}};

double number_of(const KernelConfig& config, Knob knob) {
  const bool is_flag = knob == Knob::kResidentX;
  const int64_t number = config.find(knob).value_or(is_flag ? 0 : 1);
  return static_cast<double>(is_flag ? number + 1 : std::max<int64_t>(number, 1));
}

double distance(const KernelConfig& a, const KernelConfig& b) {
  double sum = a.skeleton == b.skeleton ? 0 : 1;
  for (const auto& [knob, weight] : kSteps) {
    sum += weight * std::abs(std::log2(number_of(a, knob) / number_of(b, knob)));
  }
  return sum;
}

}  // namespace

std::vector<size_t> nearest_configs(const KernelConfig& to,
                                    std::span<const PlannedKernel> kernels) {
  std::vector<std::pair<double, size_t>> near;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const double far = distance(kernels[i].config, to);
    if (far <= kFarthest) near.emplace_back(far, i);
  }
  std::ranges::sort(near);
  std::vector<size_t> places;
  for (const auto& [far, place] : near) places.push_back(place);
  return places;
}

}  // namespace tenon::kernels
