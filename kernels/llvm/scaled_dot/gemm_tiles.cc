#include "kernels/llvm/scaled_dot/gemm_tiles.h"

#include <fmt/format.h>

#include "kernels/llvm/scaled_dot/panel_task.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;
using Nothing = std::vector<ValueId>;

constexpr int64_t kPerTask = 1024;  // elements of a row that one task rounds
constexpr int64_t kSixteen = 16;    // rows of a tile
constexpr int kTileK = 32;          // k of a tile
constexpr int64_t kKBlock = 256;    // a panel's share and 32 rows of it stay in L1
constexpr int64_t kRowBlock = 256, kFewRowBlock = 64;

class TileGemm {
 public:
  TileGemm(LaunchWriter& writer, const TilePlan& plan, const WeightReader& weight, ValueId a)
      : writer_(writer),
        b_(writer.builder),
        plan_(plan),
        weight_(weight),
        layout_(weight.layout),
        a_(a),
        columns_(layout_.columns) {}

  void emit(Epilogue& epilogue) {
    task_ = locate_panel_task(writer_, layout_.panels, plan_.row_block, plan_.rows);
    sums_ = b_.alloc(DType::kF32, plan_.row_block * columns_);
    numbers_ = b_.alloc(DType::kBF16, plan_.k_block * columns_);
    epilogue.begin();
    // Rows past the last are multiplied with the others and never stored.
    clear_sums(b_, sums_, columns_, rounded_up(task_.rows));
    for_k_blocks(b_, b_.index(layout_.k), plan_.k_block, [&](ValueId kc, ValueId count) {
      b_.loop({b_.index(0), count, b_.index(layout_.block)}, {}, [&](ValueId at, auto) {
        dequantize_block(kc, at);
        return Nothing{};
      });
      multiply(kc, count);
    });
    store_panel_rows(writer_, task_, {columns_, layout_.n}, epilogue, [&](ValueId row) {
      return b_.load({sums_, line(row)}, {columns_});
    });
  }

 private:
  ValueId line(ValueId row) { return b_.mul(row, b_.index(columns_)); }
  ValueId rounded_up(ValueId rows) {
    const ValueId past = b_.add(rows, b_.index(kTileRows - 1));
    return b_.mul({b_.div(past, b_.index(kTileRows)), b_.index(kTileRows)});
  }

  // k = kc + at … of one block of scales as bf16, two k side by side in each column.
  void dequantize_block(ValueId kc, ValueId at) {
    const ValueId block = b_.div({b_.add(kc, at), b_.index(layout_.block)});
    const Tile scale = weight_.load_scale(b_, task_.panel, block);
    const int per_word = layout_.per_word();
    for (int64_t k = 0; k < layout_.block; k += per_word) {
      const ValueId first = b_.add(at, b_.index(k));
      const Tile words =
          weight_.load_words(b_, task_.panel, b_.div({b_.add(kc, first), b_.index(per_word)}));
      for (int j = 0; j < per_word; j += 2) {
        b_.store({{numbers_, line(b_.add(first, b_.index(j)))},
                  b_.bitcast(pair(words, j, scale), DType::kBF16)});
      }
    }
  }

  // The product is exact in bf16, which is the upper half of f32: the lower one is zero.
  Tile pair(Tile words, int j, Tile scale) {
    const auto bits = [&](int of) {
      return b_.bitcast(b_.mul(weight_.dequantize(b_, words, of), scale), DType::kU32);
    };
    const Tile half = b_.integer_constant(DType::kU32, 16, {columns_});
    return b_.binary(Fn::kOr, {b_.binary(Fn::kShiftRight, bits(j), half), bits(j + 1)});
  }

  void multiply(ValueId kc, ValueId count) {
    const auto step = [&](ValueId begin, ValueId end, int64_t height) {
      b_.loop(begin, end, b_.index(height), {}, [&](ValueId row, auto) {
        const ValueId k = b_.index(layout_.k);
        const ValueId from = b_.add({b_.mul(b_.add(task_.first_row, row), k),
                                     b_.mul(kc, b_.index(kSixteen))});  // kc / 32 tiles of 16 x 32
        const codegen::Access sums{sums_, line(row)}, numbers{numbers_, b_.index(0)};
        b_.tile_dot(sums, {a_, from}, numbers,
                    {static_cast<int>(height), columns_, b_.mul(k, b_.index(kSixteen)), count});
        return Nothing{};
      });
    };
    // Up to 16 rows that are left take half the time.
    const ValueId whole =
        b_.mul({b_.div({b_.add(task_.rows, b_.index(kSixteen - 1)), b_.index(kTileRows)}),
                b_.index(kTileRows)});
    step(b_.index(0), whole, kTileRows);
    step(whole, task_.rows, kSixteen);
  }

  LaunchWriter& writer_;
  Builder& b_;
  const TilePlan& plan_;
  const WeightReader& weight_;
  const WeightLayout& layout_;
  const ValueId a_;
  const int columns_;
  PanelTask task_;
  ValueId sums_ = kNone, numbers_ = kNone;
};

}  // namespace

Support supports_tiles(const WeightLayout& layout, const codegen::HostTarget& host) {
  if (!host.tiles) return Support::no("this CPU has no AMX");
  if (layout.element != DType::kF4E2M1 || !layout.eight_bit_scales) {
    return Support::no("the weight times its scale is not exact in bf16");
  }
  if (layout.k % kTileK != 0 || kKBlock % layout.block != 0) {
    return Support::no(fmt::format("K = {} in blocks of {} is not a multiple of the AMX tile",
                                   layout.k, layout.block));
  }
  return Support::yes();
}

TilePlan plan_gemm_tiles(const Dim& rows, const WeightLayout& layout,
                         const codegen::HostTarget& host) {
  // Few panels: smaller blocks of rows keep all cores busy. Many: each is dequantised less often.
  const bool few = layout.panels < 2 * host.threads;
  return {few ? kFewRowBlock : kRowBlock, kKBlock, rows};
}

BufferArgument tile_rows(const Dim& rows, int64_t k, BufferArgument a, const Dim& wanted,
                         Lowered& lowered) {
  const BufferArgument tiles =
      lowered.add_scratch(ceil_div(rows, kTileRows) * kTileRows * k * 2 * wanted);
  LaunchWriter writer("tile_rows");
  Builder& b = writer.builder;
  const ValueId from = writer.buffer("a", DType::kF32, a);
  const ValueId to = writer.buffer("tiles", DType::kBF16, tiles);
  const int64_t tasks_per_row = (k + kPerTask - 1) / kPerTask;
  const ValueId row = b.div({b.task(), b.index(tasks_per_row)});
  const ValueId first = b.mul({b.rem({b.task(), b.index(tasks_per_row)}), b.index(kPerTask)});
  const ValueId last = b.min({b.add(first, b.index(kPerTask)), b.index(k)});
  const ValueId within = b.rem(row, b.index(kSixteen));
  const ValueId begin =
      b.add({b.mul({b.sub(row, within), b.index(k)}), b.mul(within, b.index(kTileK))});
  b.loop(first, last, b.index(kTileK), {}, [&](ValueId at, auto) {
    const Tile numbers = b.load({from, b.add(b.mul(row, b.index(k)), at)}, {kTileK});
    const ValueId place = b.add(begin, b.mul(at, b.index(kSixteen)));
    b.store({to, place}, b.cast(numbers, DType::kBF16));
    return Nothing{};
  });
  lowered.launches.push_back(
      writer.finish(rows * tasks_per_row * wanted, std::min(k, kPerTask) / 2));
  return tiles;
}

void declare_gemm_tiles(LaunchWriter& writer, const TilePlan& plan) { writer.declare(plan.rows); }

void emit_gemm_tiles(LaunchWriter& writer, const TilePlan& plan, const WeightReader& weight,
                     ValueId a, Epilogue& epilogue) {
  TileGemm(writer, plan, weight, a).emit(epilogue);
}

}  // namespace tenon::kernels
