// What products of queries and keys count in the decoding kernel, as logarithms to base 2. Tiles
// have a row for each row of each warp, and a column for each key that a warp has of a stage.
#pragma once

#include <limits>
#include <vector>

#include "kernels/llvm/attention/flash_decode_config.h"
#include "kernels/llvm/attention/task.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

class FlashDecodeScores {
 public:
  static constexpr double kHidden = -std::numeric_limits<double>::infinity();

  // Adds the mask's parameter.
  FlashDecodeScores(LaunchWriter& writer, const ir::Graph& graph, const AttentionProblem& problem,
                    const FlashDecodeConfig& config);
  void declare();

  // Scaled and capped, of any shape; `factor`: f32 [] that multiplies them, too.
  Tile scaled(Tile products, codegen::ValueId factor = codegen::kNone);
  // Scores of one key in the group's heads, [group], under the mask; one query.
  Tile masked(Tile scores, const AttentionTask& task, codegen::ValueId key);
  // Of a stage whose first key is `key`, with `left` keys up to the last that is visible; what does
  // not count is kHidden.
  Tile visible(Tile products, const AttentionTask& task, codegen::ValueId key,
               codegen::ValueId left, codegen::ValueId factor = codegen::kNone);

 private:
  std::vector<int> shape() const { return {config_.rows(), config_.warp_keys}; }
  codegen::ValueId dim(const Dim& value) { return writer_.index(value); }
  codegen::ValueId cut(codegen::ValueId keys);
  Dim mask_keys() const;
  Tile f32(double value) { return b_.constant(DType::kF32, value, shape()); }
  Tile i32(int64_t value) { return b_.integer_constant(DType::kI32, value, shape()); }
  Tile splat(codegen::ValueId index) {
    return b_.splat(b_.from_index(index, DType::kI32), shape());
  }
  Tile row_of_warp();
  Tile query_of_row();
  Tile head_of_row();
  Tile key_of_stage();
  codegen::ValueId mask_offset(const AttentionTask& task, codegen::ValueId key);
  Tile add_mask(Tile scores, const AttentionTask& task, codegen::ValueId key,
                codegen::ValueId left);
  Tile biased(Tile scores, codegen::ValueId offset, Tile at, Tile inside);
  Tile hide(Tile scores, const AttentionTask& task, codegen::ValueId key, codegen::ValueId left);

  LaunchWriter& writer_;
  codegen::Builder& b_;
  const ir::Graph& graph_;
  const AttentionProblem& problem_;
  const ir::Attention& attention_;
  const FlashDecodeConfig config_;
  codegen::ValueId mask_ = codegen::kNone;
};

}  // namespace tenon::kernels
