// One fusion as a graph of its own, in a row of equals: each finds its weights in memory, not in
// L2, and a launch before it that is still at work, as in a model.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "kernels/llvm/scaled_dot/gemm_problem.h"
#include "kernels/running/program.h"
#include "kernels/tuner/sizes.h"

namespace tenon::kernels {

// What an input of a trial holds: numbers of its type around 0, bytes of any value, or integers
// that are valid wherever they index, or sizes.
struct TrialInput {
  enum class Holds : uint8_t { kNumbers, kCodes, kKeyCounts, kPositions, kZeros, kSizes } holds{};
  DType dtype{};
  std::vector<int64_t> dims;
  int64_t limit = 0;                // kKeyCounts: that number; kPositions: exclusive
  std::vector<int64_t> sizes = {};  // kSizes: its elements
};

struct TrialOutput {
  DType dtype{};
  std::vector<int64_t> dims;
  std::optional<size_t> in_place_of;  // the input whose memory it is: a cache that grows
};

struct TrialGraph {
  ir::Graph graph;
  std::vector<TrialInput> inputs;
  std::vector<TrialOutput> outputs;  // of one copy after the other
  int copies = 1;
  int together = 1;  // copies that run side by side, as they do in the model
  size_t outputs_each() const { return outputs.size() / static_cast<size_t>(copies); }
};

// `cold_bytes`: what all copies together are to read that no cache may hold.
// `together`: how many launches wait for none of the others in the model.
TrialGraph make_trial_graph(const ir::Graph& fused, const ir::Node& node, const Sizes& sizes,
                            int64_t cold_bytes, int most_copies, int together);

// Each group of so many copies begins when the one before has ended.
void separate_groups(const TrialGraph& trial, Program& program);

}  // namespace tenon::kernels
