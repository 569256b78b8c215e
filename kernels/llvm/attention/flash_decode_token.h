// The token that a step of decoding adds, inside of the kernel that attends to it: one launch
// norms and rotates its heads (as place_heads would), writes its key and value into the caches, and
// attends. Older keys are read from past, which no launch writes where it counts: they are fetched
// before the wait of PDL.
#pragma once

#include "kernels/llvm/attention/key_cache.h"
#include "kernels/llvm/attention/task.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

// Whether a Run of one query can do without place_heads.
Support can_add_token(const ir::Graph& graph, const ir::Node& node,
                      const AttentionProblem& problem);
// What is left to fetch then: q as it is given, and past.
AttentionOperands operands_of_past(const AttentionProblem& problem);

class NewToken {
 public:
  // Adds its parameters.
  NewToken(LaunchWriter& writer, const ir::Graph& graph, const ir::Node& node,
           const AttentionProblem& problem, codegen::ValueId q);

  // `kept`: rows of past that stay; the token's own row comes behind them.
  void locate(const AttentionTask& task, codegen::ValueId kept);

  // Columns from `first` on of heads of q, and of the key, normed, rotated and rounded; zeros past
  // the end.
  Tile queries(int heads, int64_t first, int columns);
  Tile key(int64_t first, int columns);
  // The value, for each of some rows.
  Tile value(int rows, int columns);
  // Columns of the value's head, wherever they stand in the tile of their numbers.
  Tile value_at(Tile column);
  // Elements of the caches' rows from `first` on.
  void store_key(int64_t first, Tile key);
  void store_value(int64_t first, Tile value);

 private:
  struct Heads {
    codegen::ValueId buffer;
    ir::ValueId id;
    HeadStrides strides;
    int64_t depth;
    codegen::ValueId norm = codegen::kNone;  // its weight
    ir::ValueId norm_id = ir::kNoValue;
  };
  codegen::ValueId dim(const Dim& value) { return writer_.index(value); }
  codegen::ValueId place(const HeadStrides& strides, codegen::ValueId head);
  void store(codegen::ValueId present, int64_t depth, int64_t first, Tile elements);
  Tile reciprocal_roots(const Heads& from, codegen::ValueId head, int heads);
  Tile rotated(const Heads& from, codegen::ValueId head, int heads, int64_t first, int columns);
  Tile angles(codegen::ValueId buffer, ir::ValueId id, Tile angle, Tile turned, double fill);

  LaunchWriter& writer_;
  codegen::Builder& b_;
  const ir::Graph& graph_;
  const AttentionProblem& problem_;
  const ir::Attention& attention_;
  Heads q_, k_, v_;
  codegen::ValueId present_k_, present_v_, cos_ = codegen::kNone, sin_ = codegen::kNone,
                                           positions_ = codegen::kNone;
  AttentionTask task_{};
  codegen::ValueId kept_ = codegen::kNone, angles_at_ = codegen::kNone;
};

}  // namespace tenon::kernels
