// The register tile of a dot on a host: rows of a times columns of b, sized so that the
// accumulators, one row of b and a broadcast of a fill the registers without spilling.
#pragma once

#include <vector>

#include "codegen/target.h"

namespace tenon::kernels {

struct MicroTile {
  int columns = 0;           // width of a packed panel, a power of two
  std::vector<int> heights;  // rows at once: the first as often as it fits, then the smaller ones
  int row_registers = 0;     // that hold a row of `columns`
  bool by_lane = false;      // a is read four k at a time and multiplied by lanes of that

  // k per trip of the inner loop. A trip of 12 multiplications hides what it takes to count it;
  // more of them would only be more code to generate.
  int k_step(int height) const {
    constexpr int kMost = 4, kMultiplications = 12;
    int step = by_lane ? kMost : 1;
    while (step < kMost && step * height * row_registers < kMultiplications) step *= 2;
    return step;
  }

  static MicroTile for_host(const codegen::HostTarget& host) {
    if (host.vector_bits >= 512) return {32, {12, 4, 1}, 2};  // 24 accumulators of 32
    // NEON multiplies by a lane: 16 accumulators, four k of four rows and a row of b are 24 of 32.
    if (host.arch == codegen::HostArch::kAArch64) return {16, {4, 2, 1}, 4, true};
    return {16, {6, 2, 1}, 2};  // AVX2: 12 of 16
  }
};

}  // namespace tenon::kernels
