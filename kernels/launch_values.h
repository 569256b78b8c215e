// Which arguments of a launch's kernel are values of the graph, and which of them its copies to
// shared memory (TMA, cp.async) read.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/lowered.h"
#include "kernels/running/program.h"

namespace tenon::kernels {

// visit(number of the parameter, value)
void for_values(const Launch& launch, const std::function<void(size_t, ir::ValueId)>& visit);

std::set<codegen::ValueId> fetched_buffers(const codegen::Kernel& kernel);
bool fetches(const Launch& launch);
std::vector<FetchedBuffer> fetched_values(const ir::Graph& graph, const Launch& launch);

}  // namespace tenon::kernels
