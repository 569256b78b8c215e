// How the splits of flash-decoding meet: each CTA leaves what it has seen of its keys as a partial
// result, a maximum, a denominator and outputs for every row, and the last one merges all of a
// head.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/llvm/attention/flash_decode_config.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

// A number for each row as a tile of `columns` columns.
Tile spread(codegen::Builder& b, Tile rows, int columns);
// Where nothing was seen the maximum is -inf, and -inf - -inf is no number.
Tile base_of(codegen::Builder& b, Tile maximum);

class FlashDecodePartials {
 public:
  // `count`: partial results of a head.
  FlashDecodePartials(LaunchWriter& writer, const ir::Graph& graph, const AttentionProblem& problem,
                      const FlashDecodeConfig& config, const Dim& count, Lowered& lowered);

  void locate(codegen::ValueId head_number) { head_number_ = head_number; }
  void for_queries(const std::function<void(codegen::ValueId)>& body);

  // `ends`: maxima, sums and outputs (by box) of every row of every warp of the CTA.
  void store_warps(codegen::ValueId partial, const std::vector<Tile>& ends);
  // Of one query: [group], and outputs [group, columns].
  void store(codegen::ValueId partial, Tile maxima, Tile totals, Tile outputs);
  // All partial results of a query, each element by itself: nothing changes threads. Sums and
  // outputs, both [group, columns]; `sinks`: what else counts as a key, or kNone.
  std::pair<Tile, Tile> merged(codegen::ValueId query, Tile sinks);

 private:
  codegen::ValueId buffer(const char* name, int columns, const ir::Graph& graph, Lowered& lowered);
  codegen::ValueId dim(const Dim& value) { return writer_.index(value); }
  int columns() const { return config_.value_boxes * config_.columns; }
  Tile f32(double value, std::vector<int> shape);
  Tile exp2(Tile x) { return b_.unary(codegen::Fn::kExp2, x); }
  codegen::ValueId first_row(codegen::ValueId query, codegen::ValueId partial);
  Tile over_warps(codegen::Fn fn, const std::function<Tile(int)>& part);
  void store_outputs(codegen::ValueId partial, std::span<const Tile> outputs, Tile weight);
  int merged_at_once() const;
  std::vector<codegen::ValueId> add_partials(codegen::ValueId query, codegen::ValueId first,
                                             int count, std::span<const codegen::ValueId> before);

  LaunchWriter& writer_;
  codegen::Builder& b_;
  const AttentionProblem& problem_;
  const FlashDecodeConfig config_;
  const int group_, most_queries_;
  const Dim count_;
  codegen::ValueId outputs_, maxima_, totals_, head_number_ = codegen::kNone;
};

}  // namespace tenon::kernels
