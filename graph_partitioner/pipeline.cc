#include "graph_partitioner/pipeline.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "graph_partitioner/ir/collectives.h"
#include "graph_partitioner/ir/verify.h"
#include "graph_partitioner/passes/complete_shapes.h"
#include "graph_partitioner/passes/decompose.h"
#include "graph_partitioner/passes/dequantize_rows.h"
#include "graph_partitioner/passes/fold_constants.h"
#include "graph_partitioner/passes/fuse_convolutions.h"
#include "graph_partitioner/passes/fuse_epilogues.h"
#include "graph_partitioner/passes/fuse_loops.h"
#include "graph_partitioner/passes/fuse_prologues.h"
#include "graph_partitioner/passes/hoist_movement.h"
#include "graph_partitioner/passes/hoist_views.h"
#include "graph_partitioner/passes/infer_shapes.h"
#include "graph_partitioner/passes/join_all_reduces.h"
#include "graph_partitioner/passes/match_attention.h"
#include "graph_partitioner/passes/match_scaled_dot.h"
#include "graph_partitioner/passes/merge_dots.h"
#include "graph_partitioner/passes/narrow_gathers.h"
#include "graph_partitioner/passes/normalize.h"
#include "graph_partitioner/passes/read_packed_heads.h"
#include "graph_partitioner/passes/select_rows.h"
#include "graph_partitioner/passes/separate_outputs.h"
#include "graph_partitioner/passes/shape_arithmetic.h"
#include "graph_partitioner/passes/share_equal_collectives.h"
#include "graph_partitioner/passes/share_equal_values.h"
#include "graph_partitioner/passes/sink_views.h"
#include "graph_partitioner/passes/split_dots.h"
#include "graph_partitioner/passes/store_channels_last.h"
#include "graph_partitioner/passes/widen_bias_scales.h"

namespace tenon {
namespace {

struct Pass {
  std::string_view name;
  void (*run)(ir::Graph&) = nullptr;
  void (*run_where_supported)(ir::Graph&, const SupportsFn&) = nullptr;
};

// Not one of the table: what it does comes from outside.
constexpr std::string_view kShardBehind = "share_equal_values";
// From the last rule on collectives on their order is fixed.
constexpr std::string_view kOrderBehind = "narrow_gathers";
constexpr std::string_view kFirstThatMovesNothing = "separate_outputs";

// In this order; nodes that nobody reads are removed after each.
constexpr Pass kPasses[] = {
    {"forget_declared_shapes", forget_declared_shapes},
    {"infer_shapes", infer_shapes},
    {"complete_shapes", complete_shapes},
    {"widen_bias_scales", widen_bias_scales},
    {"fold_constants", fold_constants},
    {"normalize", normalize},
    {"infer_shapes", infer_shapes},
    {"shape_arithmetic", shape_arithmetic},
    {"normalize", normalize},
    {"match_scaled_dot", match_scaled_dot},
    {"match_attention", match_attention},
    {"dequantize_rows", nullptr, dequantize_rows},
    {"fuse_convolutions", nullptr, fuse_convolutions},
    {"decompose", decompose},
    {"infer_shapes", infer_shapes},
    {"fold_constants", fold_constants},
    {"store_channels_last", nullptr, store_channels_last},
    {"share_equal_values", share_equal_values},
    {"share_equal_collectives", share_equal_collectives},
    {"join_all_reduces", join_all_reduces},
    {"narrow_gathers", narrow_gathers},
    {"hoist_views", hoist_views},
    {"select_rows", select_rows},
    {"split_dots", nullptr, split_dots},
    {"fuse_epilogues", fuse_epilogues},
    {"merge_dots", nullptr, merge_dots},
    {"read_packed_heads", nullptr, read_packed_heads},
    {"sink_views", sink_views},
    {"hoist_movement", hoist_movement},
    {"fuse_loops", fuse_loops},
    {"fuse_prologues", nullptr, fuse_prologues},
    {"separate_outputs", separate_outputs},
};

void check(std::string_view pass, ir::Graph& graph) {
  graph.remove_dead_nodes();
  const Support valid = ir::verify(graph);
  if (valid) return;
  throw InternalError(fmt::format("pass {} left a bad graph: {}", pass, valid.reason));
}

void run_and_check(const Pass& pass, ir::Graph& graph, const SupportsFn& supports) {
  pass.run ? pass.run(graph) : pass.run_where_supported(graph, supports);
  check(pass.name, graph);
}

}  // namespace

ir::Graph fuse(ir::Graph imported, const PassObserver& observe, const SupportsFn& supports,
               const ShardFn& shard) {
  for (const Pass& pass : kPasses) {
    if (!pass.run && !supports) continue;
    if (pass.name == kFirstThatMovesNothing) ir::forget_order_of_collectives(imported);
    run_and_check(pass, imported, supports);
    if (observe) observe(pass.name, imported);
    if (pass.name == kOrderBehind) ir::order_collectives(imported);
    if (!shard || pass.name != kShardBehind) continue;
    shard(imported);
    check("shard", imported);
    if (observe) observe("shard", imported);
  }
  return imported;
}

ir::Graph run_pass(std::string_view name, ir::Graph graph) {
  const auto pass = std::find_if(std::begin(kPasses), std::end(kPasses),
                                 [&](const Pass& candidate) { return candidate.name == name; });
  if (pass == std::end(kPasses)) {
    std::string names;
    for (const Pass& known : kPasses) {
      if (names.find(known.name) == std::string::npos) names += fmt::format(" {}", known.name);
    }
    throw UserError(fmt::format("there is no pass '{}'; the passes are:{}", name, names));
  }
  run_and_check(*pass, graph, [](const ir::Graph&, const ir::Node&) { return Support::yes(); });
  return graph;
}

}  // namespace tenon
