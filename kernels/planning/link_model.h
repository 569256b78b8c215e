// What a collective is expected to take: alpha (what a step costs however little it moves) and beta
// (bytes per second of the link between two ranks). A prediction: nothing here was measured.
#pragma once

#include <algorithm>
#include <string_view>

#include "graph_partitioner/ir/collectives.h"

namespace tenon::kernels {

// An AllReduce of little between GPUs of one host is one exchange: every rank sends all to all
// others (distributed/peer_sum.h).
inline constexpr double kMostDirectBytes = 512 << 10;  // that a rank brings, times the ranks
inline constexpr int kMostDirectRanks = 8;

struct LinkModel {
  double base_us = 0;  // to start a collective, whatever it is
  double step_us = 0;  // of each step of a ring
  double gigabytes_per_second = 1;
  double direct_us = 0;  // of an AllReduce in one exchange; 0: there is none

  bool is_direct(int ranks, double bytes) const {
    return direct_us > 0 && ranks <= kMostDirectRanks && ranks * bytes <= kMostDirectBytes;
  }

  // `bytes`: of the larger side of the collective, on one rank: what AllReduce sums, what AllGather
  // gives, what ReduceScatter and AllToAll take.
  double microseconds(std::string_view op, int ranks, double bytes) const {
    if (ranks <= 1) return 0;
    const double others = ranks - 1;
    if (op == ir::kAllReduce && is_direct(ranks, bytes)) {
      return direct_us + 2 * others * bytes / gigabytes_per_second * 1e-3;  // and as many numbers
    }
    const bool twice = op == ir::kAllReduce;  // reduce-scatter, then all-gather
    const bool whole = op == ir::kBroadcast || op == ir::kPermute;
    const double passes = twice ? 2 : 1;
    const double moved = whole ? bytes : passes * bytes * others / ranks;
    // Little is sent to everybody at once: a tree, not a ring, so steps grow with the logarithm.
    double depth = 0;
    for (int reached = 1; reached < ranks; reached *= 2) ++depth;
    return base_us + passes * depth * step_us + moved / gigabytes_per_second * 1e-3;
  }
};

// A GPU's NVLink by its data sheet, one direction: 300 GB/s on compute capability 8, 450 on 9, 900
// on 10. Its start and steps are what NCCL is known to take within a node; a direct exchange took
// 1.5 us within one GPU, and a store to another one is given 1 us more.
inline LinkModel nvlink_model(int compute_capability_major) {
  const double rate = compute_capability_major >= 10  ? 900
                      : compute_capability_major == 9 ? 450
                                                      : 300;
  return {6.0, 1.0, rate, 2.5};
}

}  // namespace tenon::kernels
