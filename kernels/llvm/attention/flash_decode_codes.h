// Codes of a cache inside of the decoding kernel: words of a stage become operands of its products
// in registers. A word holds two codes for each of `config.codes` products, so that two of them
// fill a register of 16-bit numbers as they are; product i of a box has codes i, i + codes, i + 2
// codes …
//
// Scales are no part of this: those of keys go into the queries and the scores, those of values
// multiply the result.
#pragma once

#include "kernels/llvm/attention/flash_decode_config.h"
#include "kernels/llvm/attention/task.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

class FlashDecodeCodes {
 public:
  // Adds the scales' parameters.
  FlashDecodeCodes(LaunchWriter& writer, const ir::Graph& graph, const AttentionProblem& problem,
                   const FlashDecodeConfig& config);
  void locate(const AttentionTask& task);

  // What product `part` takes of words [keys, words]: keys [keys, columns], or values, whose
  // columns are in the order that column() tells.
  Tile keys(Tile words, int part);
  Tile values(Tile words, int part);
  // What lies behind the last key may be no number.
  bool may_be_nan() const { return is_floating(type_); }

  // Queries [rows, columns of a head from `first` on] times the scales of the keys, over factor().
  Tile scaled_queries(Tile queries, int64_t first);
  // What products are to be multiplied with: f32 [].
  Tile factor() const { return factor_; }

  // The accumulators [heads, all columns] of a query times the scales of values, from `offset` of y
  // on.
  void store_result(codegen::ValueId y, codegen::ValueId offset, Tile accumulators, DType type);
  // Which column of a head an element of the accumulators belongs to: i32.
  Tile column(std::vector<int> shape);

  // Numbers of a new head [1, columns from `first` on] as codes, as f32 again, and as the cache
  // stores them.
  Tile key_codes(Tile numbers, int64_t first);
  Tile value_codes(Tile numbers, int64_t first);
  Tile as_numbers(Tile codes);
  Tile as_stored(Tile codes);
  Tile key_scales(std::vector<int> shape, int64_t first);
  // The same of values at these columns.
  Tile rounded_values(Tile numbers, Tile column);

 private:
  // The scales of values in these columns.
  Tile value_scales(Tile column);
  struct Scale {
    codegen::ValueId buffer;
    bool is_one;  // for all
  };
  Tile number(double value, const std::vector<int>& shape) {
    return b_.constant(DType::kF32, value, shape);
  }
  Tile word(uint32_t value, Tile like) {
    return b_.integer_constant(DType::kU32, value, b_.type(like).shape);
  }
  Tile integer(int64_t value, const std::vector<int>& shape) {
    return b_.integer_constant(DType::kI32, value, shape);
  }
  Scale scale_of(const char* name, ir::ValueId id);
  Tile scales(const Scale& scale, std::vector<int> shape, int64_t first);
  void find_factor();

  LaunchWriter& writer_;
  codegen::Builder& b_;
  const ir::Graph& graph_;
  const AttentionProblem& problem_;
  const FlashDecodeConfig config_;
  const DType type_, operand_;
  Scale key_, value_;
  codegen::ValueId first_scale_ = codegen::kNone;  // of the task's head
  Tile factor_ = codegen::kNone, reciprocal_ = codegen::kNone;
};

}  // namespace tenon::kernels
