#include "kernels/llvm/scaled_dot/gemv.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;

// Chains of additions that run side by side: one would wait for itself.
constexpr int kChains = 2;
// The hardware follows one stream too late for a loop this short.
constexpr int64_t kBytesAhead = 8 << 10;
constexpr int64_t kBlocksAhead = 16;

// sums[chain] += a[k…] * codes of one word
std::vector<Tile> add_word(Builder& b, const WeightReader& weight, ValueId a, ValueId panel,
                           ValueId word, Tile zero, std::vector<Tile> sums) {
  const int per_word = weight.layout.per_word(), columns = weight.layout.columns;
  weight.prefetch_words(b, panel, word, kBytesAhead / (4 * columns));
  const Tile words = weight.load_words(b, panel, word);
  const ValueId k = b.mul(word, b.index(per_word));
  for (int j = 0; j < per_word; ++j) {
    Tile value = weight.dequantize(b, words, j);
    if (zero != kNone) value = b.sub(value, zero);
    const Tile x = b.splat(b.load({a, b.add(k, b.index(j)), {}, {}}, {}), {columns});
    Tile& sum = sums[j % kChains];
    sum = b.fma(x, value, sum);
  }
  return sums;
}

// Of floats: the row and the panel are read, and no more. The hardware follows so wide a stream by
// itself; to ask for words ahead took a Neoverse-N1 a tenth longer.
Tile float_sum(Builder& b, const WeightReader& weight, ValueId a, ValueId panel) {
  constexpr int64_t kStep = 8;
  const WeightLayout& layout = weight.layout;
  const auto add = [&](ValueId k, int64_t count, std::vector<Tile> sums) {
    for (int64_t j = 0; j < count; ++j) {
      const ValueId at = b.add(k, b.index(j));
      const Tile x = b.splat(b.load({a, at, {}, {}}, {}), {layout.columns});
      Tile& sum = sums[static_cast<size_t>(j) % kChains];
      sum = b.fma(x, weight.dequantize(b, weight.load_words(b, panel, at), 0), sum);
    }
    return sums;
  };
  std::vector<Tile> sums(kChains, b.constant(DType::kF32, 0, {layout.columns}));
  const ValueId even = b.index(layout.k / kStep * kStep);
  sums = b.loop({b.index(0), even, b.index(kStep)}, sums, [&](ValueId k, auto carried) {
    return add(k, kStep, {carried.begin(), carried.end()});
  });
  sums = add(even, layout.k % kStep, std::move(sums));
  return b.add(sums[0], sums[1]);
}

}  // namespace

Tile gemv_sum(Builder& b, const WeightReader& weight, ValueId a, ValueId panel, GemvCode code) {
  const WeightLayout& layout = weight.layout;
  if (layout.plain() || layout.is_half()) return float_sum(b, weight, a, panel);
  const std::vector<int> shape = {layout.columns};
  const int64_t words = layout.block / layout.per_word();

  const auto block_sum = [&](ValueId block) {
    const Tile zero =
        layout.zero_type != DType::kUndefined ? weight.load_zero(b, panel, block) : kNone;
    const ValueId first = b.mul(block, b.index(words));
    weight.prefetch_scale(b, panel, block, kBlocksAhead);
    std::vector<Tile> sums(kChains, b.constant(DType::kF32, 0, shape));
    if (words == 1 || (words <= 4 && code == GemvCode::kFast)) {
      for (int64_t w = 0; w < words; ++w) {
        sums = add_word(b, weight, a, panel, b.add(first, b.index(w)), zero, std::move(sums));
      }
    } else {
      sums = b.loop({b.index(0), b.index(words), b.index(1)}, sums, [&](ValueId w, auto carried) {
        return add_word(b, weight, a, panel, b.add(first, w), zero,
                        {carried.begin(), carried.end()});
      });
    }
    return b.add(sums[0], sums[1]);
  };
  const codegen::Range blocks{b.index(0), b.index(layout.blocks()), b.index(1)};
  return b.loop(blocks, {b.constant(DType::kF32, 0, shape)},
                [&](ValueId block, auto carried) -> std::vector<ValueId> {
                  const Tile sum = block_sum(block);
                  if (layout.scale_type == DType::kUndefined) return {b.add(carried[0], sum)};
                  return {b.fma(sum, weight.load_scale(b, panel, block), carried[0])};
                })[0];
}

void emit_gemv(LaunchWriter& writer, const WeightReader& weight, ValueId a, Epilogue& epilogue) {
  Builder& b = writer.builder;
  const WeightLayout& layout = weight.layout;
  const ValueId panel = b.task();
  epilogue.begin();
  const Tile total = gemv_sum(b, weight, a, panel, GemvCode::kFast);
  const ValueId column = b.mul(panel, b.index(layout.columns));
  const bool whole = layout.n % layout.columns == 0;
  const ValueId extent = whole ? kNone : b.sub(b.index(layout.n), column);
  epilogue.emit({b.index(0), column, extent}, total);
}

}  // namespace tenon::kernels
