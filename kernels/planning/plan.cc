#include "kernels/planning/plan.h"

namespace tenon::kernels {

Plan Plan::of(KernelConfig config, std::function<Lowered()> lower) {
  return {.ranges = {{{}, {{std::move(config)}}}}, .lower = std::move(lower)};
}

}  // namespace tenon::kernels
