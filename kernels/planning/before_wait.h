// What a launch reads before its griddepcontrol.wait: decided here alone. The cost model asks it of
// inputs before there is a kernel, the program marks them so in the kernel, code generation follows
// the mark (codegen/pdl.h), and LaunchDependencies checks and prints the whole.
#pragma once

#include "kernels/planning/candidate.h"
#include "kernels/planning/views.h"

namespace tenon::kernels {

// What the caller brings is there before the first launch of a Run.
inline bool reads_before_wait(const ir::Graph& graph, ir::ValueId id, const Settings& settings) {
  return settings.tuning.reads_inputs_before_wait && caller_brings(graph, id);
}

}  // namespace tenon::kernels
