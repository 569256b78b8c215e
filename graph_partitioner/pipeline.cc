#include "graph_partitioner/pipeline.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "graph_partitioner/ir/verify.h"

#ifdef TENON_HAS_INFER_SHAPES
#include "graph_partitioner/passes/infer_shapes.h"
#endif
#ifdef TENON_HAS_FOLD_CONSTANTS
#include "graph_partitioner/passes/fold_constants.h"
#endif
#ifdef TENON_HAS_NORMALIZE
#include "graph_partitioner/passes/normalize.h"
#endif
#ifdef TENON_HAS_SHAPE_ARITHMETIC
#include "graph_partitioner/passes/shape_arithmetic.h"
#endif
#ifdef TENON_HAS_MATCH_SCALED_DOT
#include "graph_partitioner/passes/match_scaled_dot.h"
#endif
#ifdef TENON_HAS_MATCH_ATTENTION
#include "graph_partitioner/passes/match_attention.h"
#endif
#ifdef TENON_HAS_DECOMPOSE
#include "graph_partitioner/passes/decompose.h"
#endif
#ifdef TENON_HAS_FUSE_EPILOGUES
#include "graph_partitioner/passes/fuse_epilogues.h"
#endif
#ifdef TENON_HAS_FUSE_LOOPS
#include "graph_partitioner/passes/fuse_loops.h"
#endif
#ifdef TENON_HAS_SINK_MOVEMENT
#include "graph_partitioner/passes/sink_movement.h"
#endif
#ifdef TENON_HAS_SEPARATE_OUTPUTS
#include "graph_partitioner/passes/separate_outputs.h"
#endif

namespace tenon {
namespace {

struct Pass {
  std::string_view name;
  void (*run)(ir::Graph&);
};

constexpr Pass kPasses[] = {
#ifdef TENON_HAS_INFER_SHAPES
    {"infer_shapes", infer_shapes},
#endif
#ifdef TENON_HAS_FOLD_CONSTANTS
    {"fold_constants", fold_constants},
#endif
#ifdef TENON_HAS_NORMALIZE
    {"normalize", normalize},
#endif
#ifdef TENON_HAS_INFER_SHAPES
    {"infer_shapes", infer_shapes},
#endif
#ifdef TENON_HAS_SHAPE_ARITHMETIC
    {"shape_arithmetic", shape_arithmetic},
#endif
#ifdef TENON_HAS_NORMALIZE
    {"normalize", normalize},
#endif
#ifdef TENON_HAS_MATCH_SCALED_DOT
    {"match_scaled_dot", match_scaled_dot},
#endif
#ifdef TENON_HAS_MATCH_ATTENTION
    {"match_attention", match_attention},
#endif
#ifdef TENON_HAS_DECOMPOSE
    {"decompose", decompose},
#endif
#ifdef TENON_HAS_INFER_SHAPES
    {"infer_shapes", infer_shapes},
#endif
#ifdef TENON_HAS_FOLD_CONSTANTS
    {"fold_constants", fold_constants},
#endif
#ifdef TENON_HAS_FUSE_EPILOGUES
    {"fuse_epilogues", fuse_epilogues},
#endif
#ifdef TENON_HAS_SINK_MOVEMENT
    {"sink_movement", sink_movement},
#endif
#ifdef TENON_HAS_FUSE_LOOPS
    {"fuse_loops", fuse_loops},
#endif
#ifdef TENON_HAS_SEPARATE_OUTPUTS
    {"separate_outputs", separate_outputs},
#endif
};

void run_and_check(const Pass& pass, ir::Graph& graph) {
  pass.run(graph);
  graph.remove_dead_nodes();
  const Support valid = ir::verify(graph);
  if (!valid) throw InternalError(fmt::format("pass {} left a bad graph: {}", pass.name, valid.reason));
}

}  // namespace

ir::Graph fuse(ir::Graph imported, const PassObserver& observe) {
  for (const Pass& pass : kPasses) {
    run_and_check(pass, imported);
    if (observe) observe(pass.name, imported);
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
  run_and_check(*pass, graph);
  return graph;
}

}  // namespace tenon
