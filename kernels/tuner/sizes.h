// Numbers for the open sizes of a graph, so that a fusion has the rows that are to be measured.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/kernel_config.h"
#include "kernels/planning/roofline.h"

namespace tenon::kernels {

struct Sizes {
  std::map<std::string, int64_t, std::less<>> symbols;

  int64_t of(const Dim& dim) const;
};

// Sizes at which `rows` are `count`: one symbol of `rows` grows. Keys of an attention that rows do
// not depend on are kOpenKeys, or as many as there are rows; all other sizes are 1, unless a
// requirement of the graph says otherwise. Nothing where no symbol gives that count.
std::optional<Sizes> sizes_at(const ir::Graph& graph, const Dim& rows, int64_t count);

// At how many rows a range is measured: the most of it that the graph can have. Where the range has
// no end, kOpenRows or a few more, which stand for prompts: the first row behind a limit fills one
// tile more than all before it.
inline constexpr int64_t kOpenRows = 2048;
std::optional<int64_t> rows_measured(const ir::Graph& graph, const Dim& rows,
                                     const RowRange& range);

}  // namespace tenon::kernels
