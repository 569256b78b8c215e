#include "codegen/cost_factors.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "codegen/target.h"

namespace tenon::codegen {
namespace {

constexpr const char* kVariable = "TENON_COST_FACTORS";

uint64_t mixed(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

}  // namespace

std::optional<uint64_t> cost_seed_of_environment() {
  const char* value = std::getenv(kVariable);
  if (value == nullptr || *value == 0) return std::nullopt;
  const std::string_view text = value;
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw UserError(fmt::format("{}='{}' is no seed: expected a whole number", kVariable, text));
  }
  return seed;
}

double cost_factor(uint64_t seed, std::string_view name) {
  uint64_t bits = mixed(seed + 0x9e3779b97f4a7c15u);
  for (const char letter : name) bits = mixed(bits + static_cast<unsigned char>(letter) + 1);
  const double between = static_cast<double>(bits >> 11) * 0x1p-53;  // 0 and 1
  return std::exp2(2 * between - 1);
}

GpuCosts with_factors(GpuCosts costs, uint64_t seed) {
  visit_costs(costs,
              [&](std::string_view name, double& value) { value *= cost_factor(seed, name); });
  return costs;
}

const GpuCosts& costs_of(const GpuTarget& gpu) {
  const GpuCosts& costs = *arch_spec(gpu.arch).costs;
  if (!gpu.cost_seed) return costs;
  static std::mutex mutex;
  static std::map<std::pair<std::string, uint64_t>, GpuCosts> made;
  const std::scoped_lock lock(mutex);
  const std::pair key(gpu.arch, *gpu.cost_seed);
  auto found = made.find(key);
  if (found == made.end()) found = made.emplace(key, with_factors(costs, *gpu.cost_seed)).first;
  return found->second;
}

}  // namespace tenon::codegen
