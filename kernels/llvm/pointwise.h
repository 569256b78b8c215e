// Pointwise primitives (graph_partitioner/ir/primitives.h) as tile operations: the arithmetic of
// loops and of the epilogues of dots.
#pragma once

#include <span>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

// tenon::DimValue and tenon::Position have no operands; who emits them knows the coordinates.
Support supports_pointwise(const ir::Graph& body, const ir::Node& node);

// Operands are tiles of the inputs' compute types, kNone where an optional one is left out. Tiles
// of lower rank or with sizes of 1 are broadcast. Gives numbers in the compute type of the output.
Tile emit_pointwise(codegen::Builder& b, const ir::Graph& body, const ir::Node& node,
                    std::span<const Tile> operands);

// Cast and tenon::Quantize round to the output's own type: their result is codes first. Whoever
// stores the value wants the codes, whoever computes on dequantises them.
bool makes_codes(const ir::Node& node);
Tile emit_codes(codegen::Builder& b, const ir::Graph& body, const ir::Node& node,
                std::span<const Tile> operands);

// Tiles of one common shape: the larger rank wins, sizes of 1 are repeated.
std::vector<Tile> broadcast_operands(codegen::Builder& b, std::span<const Tile> operands);

}  // namespace tenon::kernels
