// What was claimed of a graph, as the report tells it, and what the runtime may do with it then.
#pragma once

#include <string>
#include <vector>

#include "provider/api.h"
#include "provider/compile.h"
#include "provider/report.h"

namespace tenon::provider {

GraphReport describe(const Claims& claims);
GraphReport nothing_claimed(const OrtGraph& graph, const std::string& reason);

// Functions, the model's own or an operator's of ONNX, that the runtime has not inlined yet: it
// asks again when it has. Nothing of ours knows such an op, though other ops are unknown, too.
bool may_be_inlined(const GraphReport& graph);

// Why a claim cannot become a node of a context model; empty: all can. The runtime would only speak
// of a type, when all is compiled.
std::string why_no_context(const Claims& claims);

// Initializers that bodies of control flow read from the graph around them. The runtime copies to a
// context model only those that a node of the main graph reads.
std::vector<std::string> read_by_bodies(const ir::Graph& graph);

std::vector<const OrtNode*> nodes_of(const OrtGraph& graph);

}  // namespace tenon::provider
