// Print and parse: the language of golden tests, dumps and bug reports. parse(print(g)) prints the
// same text again.
//
//   graph main {
//     input %x: f32[batch,128]
//     const %w: f4e2m1[64,128] = hex:3f20…            (long ones: `= sha256:… bytes:4096`)
//     %y: f32[batch,64] = MatMul@13(%x, %w) {alpha=1.0, axes=[0,1]} name="m" sources=[3]
//     require equal(n,128) name="m" sources=[3]
//     output %y
//   }
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "graph_partitioner/ir/graph.h"

namespace tenon::ir {

// Of constants that were printed before: a model's weights take seconds.
using Digests = std::map<TensorPtr, std::string>;

struct PrintOptions {
  size_t inline_constant_bytes = 256;  // longer constants print as a digest, and parse as zeros
  bool sources = false;
  Digests* digests = nullptr;  // to be kept from one graph to the next
};

std::string print(const Graph& graph, const PrintOptions& options = {});
std::string print(const Graph& graph, const Node& node, const PrintOptions& options = {});
// Throws UserError with line and column.
Graph parse(std::string_view text);

// Constants that the text left out, by their digest: bytes that outlive the graph, as many as asked
// for. Throws UserError where there are none.
using FindConstant =
    std::function<std::span<const std::byte>(std::string_view digest, size_t bytes)>;
Graph parse_with_constants(std::string_view text, const FindConstant& find);

}  // namespace tenon::ir
