#include "kernels/cost_fit/extrapolation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tenon::kernels {

std::vector<std::string> extrapolated_machine(const codegen::CostSource& source,
                                              const device::Description& gpu) {
  std::vector<std::string> texts;
  if (gpu.arch != source.arch) {
    std::string text = fmt::format("nobody fitted constants for {}: those of {} ({}, {})", gpu.arch,
                                   source.arch, source.card, source.date);
    if (*source.scaled_by != 0) {
      text += fmt::format(", bytes by the memory bandwidth of {}", source.scaled_by);
    }
    texts.push_back(std::move(text));
  }
  if (gpu.sm_count != source.sm_count) {
    texts.push_back(fmt::format("{} SMs, fitted with {}", gpu.sm_count, source.sm_count));
  }
  // A card that is absent has a clock of nobody.
  if (gpu.clock_mhz > 0 && gpu.clock_mhz != source.clock_mhz) {
    texts.push_back(fmt::format("{} MHz, fitted at {}", gpu.clock_mhz, source.clock_mhz));
  }
  return texts;
}

std::string extrapolated_sizes(const codegen::CostSource& source, const ProblemNumbers& problem) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : problem) {
    if (name == "k" && value < source.least_k) {
      texts.push_back(fmt::format("K {} < {}", value, source.least_k));
    } else if (name == "k" && value > source.most_k) {
      texts.push_back(fmt::format("K {} > {}", value, source.most_k));
    } else if (name == "rows" && value > source.most_rows) {
      texts.push_back(fmt::format("{} rows > {}", value, source.most_rows));
    }
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace tenon::kernels
