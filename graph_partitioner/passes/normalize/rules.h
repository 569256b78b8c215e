// One table of rules per family of spellings; normalize.cc applies them all.
#pragma once

#include <span>

#include "graph_partitioner/passes/rewrite.h"

namespace tenon::normalization {

std::span<const NamedRewrite> view_rules();
std::span<const NamedRewrite> reduction_rules();
std::span<const NamedRewrite> opset_rules();
std::span<const NamedRewrite> quantizer_rules();
std::span<const NamedRewrite> einsum_rules();
std::span<const NamedRewrite> transposed_convolution_rules();

// The first input stands for the output; a view of it where both are the graph's own.
bool identity(Rewrite& r);

}  // namespace tenon::normalization
