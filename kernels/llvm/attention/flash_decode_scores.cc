#include "kernels/llvm/attention/flash_decode_scores.h"

#include <bit>
#include <numbers>

namespace tenon::kernels {

using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

namespace {
constexpr double kLog2E = std::numbers::log2e;
}

FlashDecodeScores::FlashDecodeScores(LaunchWriter& writer, const ir::Graph& graph,
                                     const AttentionProblem& problem,
                                     const FlashDecodeConfig& config)
    : writer_(writer),
      b_(writer.builder),
      graph_(graph),
      problem_(problem),
      attention_(problem.attention),
      config_(config) {
  const ir::ValueId mask = attention_.mask;
  if (mask == ir::kNoValue) return;
  mask_ = writer.buffer("mask", storage_type(graph.value(mask).dtype), BufferArgument::value(mask));
}

void FlashDecodeScores::declare() {
  for (const Dim& dim : {problem_.mask_batch, problem_.mask_head, problem_.mask_query,
                         problem_.mask_key, mask_keys()}) {
    writer_.declare(dim);
  }
}

// Keys that the mask speaks of; 1 where it repeats.
Dim FlashDecodeScores::mask_keys() const {
  if (attention_.mask == ir::kNoValue) return 1;
  const Shape& shape = *graph_.value(attention_.mask).shape;
  return shape.empty() ? Dim(1) : shape.back();
}

Tile FlashDecodeScores::row_of_warp() {
  return b_.binary(Fn::kAnd, {b_.iota(DType::kI32, shape(), 0), i32(FlashDecodeConfig::kRows - 1)});
}
Tile FlashDecodeScores::query_of_row() {
  return b_.binary(Fn::kDiv, {row_of_warp(), i32(problem_.group())});
}
Tile FlashDecodeScores::head_of_row() {
  return b_.binary(Fn::kRem, {row_of_warp(), i32(problem_.group())});
}
Tile FlashDecodeScores::key_of_stage() {
  const Tile warp = b_.binary(
      Fn::kShiftRight, {b_.iota(DType::kI32, shape(), 0),
                        i32(std::countr_zero(static_cast<unsigned>(FlashDecodeConfig::kRows)))});
  return b_.add({b_.mul(warp, i32(config_.warp_keys)), b_.iota(DType::kI32, shape(), 1)});
}

Tile FlashDecodeScores::scaled(Tile products, ValueId factor) {
  const std::vector<int> size = b_.type(products).shape;
  const auto number = [&](double value) { return b_.constant(DType::kF32, value, size); };
  if (factor != kNone) products = b_.mul(products, b_.splat(factor, size));
  const double cap = attention_.softcap;
  if (!(cap > 0)) return b_.mul(products, number(problem_.scale * kLog2E));
  const Tile capped = b_.unary(Fn::kTanh, b_.mul(products, number(problem_.scale / cap)));
  return b_.mul(capped, number(cap * kLog2E));
}

Tile FlashDecodeScores::visible(Tile products, const AttentionTask& task, ValueId key, ValueId left,
                                ValueId factor) {
  return hide(add_mask(scaled(products, factor), task, key, left), task, key, left);
}

ValueId FlashDecodeScores::mask_offset(const AttentionTask& task, ValueId key) {
  const auto part = [&](ValueId position, const Dim& stride) {
    return b_.mul(position, dim(stride));
  };
  return b_.add(
      {b_.add({part(task.batch, problem_.mask_batch), part(task.head, problem_.mask_head)}),
       part(key, problem_.mask_key)});
}

// Elements of the mask `at` places behind `offset`; what is not inside is hidden.
Tile FlashDecodeScores::biased(Tile scores, ValueId offset, Tile at, Tile inside) {
  const bool keeps = problem_.mask_type == DType::kBool;
  const Tile codes = b_.gather(mask_, offset, at, inside, keeps ? 0 : kHidden);
  return apply_mask(b_, problem_, scores, codes, kLog2E);
}

Tile FlashDecodeScores::masked(Tile scores, const AttentionTask& task, ValueId key) {
  if (mask_ == kNone) return scores;
  const std::vector<int> size = b_.type(scores).shape;
  const Tile stride = b_.splat(b_.from_index(dim(problem_.mask_head), DType::kI32), size);
  const ValueId end = b_.select({b_.equal({dim(problem_.mask_key), b_.index(0)}),
                                 b_.add(key, b_.index(1)), dim(mask_keys())});
  const ValueId from = mask_offset(task, key);
  const Tile at = b_.mul(b_.iota(DType::kI32, size, 0), stride);
  return biased(scores, from, at, b_.splat(b_.less(key, end), size));
}

// What the mask does not speak of is hidden: it may be shorter than the keys.
Tile FlashDecodeScores::add_mask(Tile scores, const AttentionTask& task, ValueId key,
                                 ValueId left) {
  if (mask_ == kNone) return scores;
  Tile at = b_.mul({key_of_stage(), splat(dim(problem_.mask_key))});
  at = b_.add(at, b_.mul({query_of_row(), splat(dim(problem_.mask_query))}));
  at = b_.add(at, b_.mul({head_of_row(), splat(dim(problem_.mask_head))}));
  const ValueId masked =
      b_.select({b_.equal({dim(problem_.mask_key), b_.index(0)}), left,
                 b_.max({b_.index(0), b_.min(left, b_.sub(dim(mask_keys()), key))})});
  const Tile inside =
      b_.binary(Fn::kAnd, {b_.compare(Fn::kLess, {key_of_stage(), splat(cut(masked))}),
                           b_.compare(Fn::kLess, {query_of_row(), splat(dim(problem_.queries))})});
  return biased(scores, mask_offset(task, key), at, inside);
}

// A number of keys from which no stage on has more: it fits 32 bits then.
ValueId FlashDecodeScores::cut(ValueId keys) { return b_.min(keys, b_.index(config_.keys())); }

Tile FlashDecodeScores::hide(Tile scores, const AttentionTask& task, ValueId key, ValueId left) {
  const Tile place = key_of_stage();
  Tile visible = b_.compare(Fn::kLess, place, splat(cut(left)));
  const auto require = [&](Fn relation, Tile distance, int64_t bound) {
    visible = b_.binary(Fn::kAnd, visible, b_.compare(relation, distance, i32(bound)));
  };
  const bool causal = attention_.causal || attention_.causal_top_left;
  const bool ahead = causal || attention_.right_window >= 0;
  if (ahead || attention_.left_window >= 0) {
    // key - position of the query
    const Tile distance = b_.sub({b_.add(splat(b_.sub(key, task.origin)), place), query_of_row()});
    if (ahead) require(Fn::kLessEqual, distance, causal ? 0 : attention_.right_window);
    if (attention_.left_window >= 0) {
      require(Fn::kGreaterEqual, distance, -attention_.left_window);
    }
  }
  return b_.select(visible, scores, f32(kHidden));
}

}  // namespace tenon::kernels
