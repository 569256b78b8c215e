// Which of its configs a candidate is asked to take.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// Puts the config that is wanted for these of `all` rows before the others, if it is among them.
// `config_of`: a KernelConfig of one of `configs`.
template <typename Config, typename ConfigOf>
void put_wanted_first(const TuningOverrides& tuning, RowRange rows, const Dim& all,
                      std::vector<Config>& configs, const ConfigOf& config_of) {
  if (all.is_constant()) rows = rows.common_with({all.value(), all.value()});
  for (const WantedKernel& wanted : tuning.kernels) {
    if (!wanted.rows.covers(rows)) continue;
    const auto found = std::ranges::find_if(
        configs, [&](const Config& config) { return config_of(config) == wanted.config; });
    if (found != configs.end()) std::rotate(configs.begin(), found, found + 1);
  }
}

}  // namespace tenon::kernels
