#include "kernels/llvm/scaled_dot/gemm_int8_pairs.h"

#include <array>
#include <bit>

#include "kernels/llvm/scaled_dot/byte_weight.h"
#include "kernels/llvm/scaled_dot/int8_bias.h"
#include "kernels/llvm/scaled_dot/panel_task.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;
using Nothing = std::vector<ValueId>;

constexpr int kStrip = 4;   // pairs of columns that a micro tile takes
constexpr int kSquare = 4;  // numbers of a pair of rows and a pair of columns
constexpr int64_t kEight = 8;

class PairedInt8Gemm {
 public:
  PairedInt8Gemm(LaunchWriter& writer, const GemmPlan& plan, const WeightReader& weight,
                 const Int8Buffers& buffers)
      : writer_(writer),
        b_(writer.builder),
        plan_(plan),
        weight_(weight),
        layout_(weight.layout),
        buffers_(buffers),
        columns_(layout_.columns),
        unit_(int8_unit(layout_)),
        units_(layout_.k / unit_),
        chain_(int8_units_per_scale(layout_)),
        tallest_(plan.tile.heights.front() / 2),
        weight_bytes_(b_, layout_, buffers.weight_bytes, /*zero_offset=*/true, byte_factor()) {}

  void emit(Epilogue& epilogue) {
    task_ = locate_panel_task(writer_, layout_.panels, plan_.row_block, plan_.rows);
    first_pair_ = b_.div(task_.first_row, b_.index(2));
    const ValueId pairs = b_.div({b_.add(task_.rows, b_.index(1)), b_.index(2)});
    allocate();
    epilogue.begin();
    clear_sums(b_, sums_, 2 * columns_, pairs);
    for_k_blocks(b_, b_.index(layout_.k), plan_.k_block, [&](ValueId kc, ValueId count) {
      const ValueId units = b_.div(count, b_.index(unit_));
      b_.loop({b_.index(0), units, b_.index(chain_)}, {}, [&](ValueId u, auto) {
        prepare_units(kc, u);
        return Nothing{};
      });
      multiply(pairs, kc, units);
    });
    store_panel_rows(writer_, task_, {columns_, layout_.n}, epilogue,
                     [&](ValueId row) { return load_sums(row); });
  }

 private:
  // See Int8Gemm: the larger the bytes of e2m1, the less a chain's sum loses beside its bias.
  double byte_factor() const { return is_chained() ? 8 : 1; }
  // Units under one scale of a row. Their sums begin as a float's bits and run on from unit to unit
  // (int8_bias.h). A unit with a scale of its own begins at 0 and is converted: what begins a bias
  // comes by loads, of which a Neoverse-V1 has none to spare (INT4: 35 of 59 for 48 smmla remain).
  bool is_chained() const { return chain_ > 1; }
  bool has_zeros() const { return layout_.zero_type != DType::kUndefined; }
  // Two rows of sums, or a row of the weight's numbers, which each pair of rows reads twice.
  ValueId line(ValueId number) { return b_.mul(number, b_.index(2 * columns_)); }
  // Tile `p`'s copy of a line: accumulators begin by loads, as in Int8Gemm.
  ValueId copy_line(ValueId number, int p) {
    return line(b_.add({b_.mul(number, b_.index(tallest_)), b_.index(p)}));
  }

  void allocate() {
    const int64_t block_units = plan_.k_block / unit_;
    sums_ = b_.alloc(DType::kF32, plan_.row_block * columns_);
    bytes_ = b_.alloc(DType::kI8, plan_.k_block * columns_);
    scales_ = b_.alloc(DType::kF32, block_units * 2 * columns_);
    if (has_zeros()) zeros_ = b_.alloc(DType::kF32, block_units * 2 * columns_);
    if (is_chained()) allocate_bias(block_units / chain_);
  }

  void allocate_bias(int64_t chains) {
    offsets_ = b_.alloc(DType::kF32, chains * tallest_ * 2 * columns_);
    const int64_t starts = 2 * tallest_ * kStrip;
    starts_ = b_.alloc(DType::kI32, starts * kSquare);
    const int64_t bits = kBiasBaseBits + kChainRange;
    b_.loop({b_.index(0), b_.index(starts), b_.index(1)}, {}, [&](ValueId i, auto) {
      b_.store({{starts_, b_.mul(i, b_.index(kSquare))},
                b_.integer_constant(DType::kI32, bits, {kSquare})});
      return Nothing{};
    });
  }

  // Unpacks the codes of units under one scale of a row; their scales and zero points go beside
  // them.
  void prepare_units(ValueId kc, ValueId u) {
    std::vector<Tile> scales;
    for (int64_t i = 0; i < chain_; ++i) {
      const ValueId first =
          b_.mul({b_.add(u, b_.index(i)), b_.index(unit_)});  // k within the block
      dequantize_unit(kc, first);
      scales.push_back(load_scale(kc, first));
    }
    if (is_chained()) store_offsets(b_.div(u, b_.index(chain_)), scales[0]);
    for (int64_t i = 0; i < chain_; ++i) {
      const auto at = static_cast<size_t>(i);
      // Of sums that run on: the difference to what the next unit counts them with.
      const Tile factor = i + 1 < chain_ ? b_.sub(scales[at], scales[at + 1]) : scales[at];
      b_.store({{scales_, line(b_.add(u, b_.index(i)))}, for_two_rows(factor)});
    }
    if (!has_zeros()) return;
    const ValueId block = b_.div({b_.add(kc, b_.mul(u, b_.index(unit_))), b_.index(layout_.block)});
    const Tile zero = weight_.load_zero(b_, task_.panel, block);
    b_.store(
        {{zeros_, line(u)}, for_two_rows(b_.mul(zero, b_.unary(codegen::Fn::kNeg, scales[0])))});
  }

  // What scaling the bias gives too much, negated: a copy for each tile.
  void store_offsets(ValueId chain, Tile scale) {
    const auto bias = static_cast<double>(kBiasBase + kChainRange);
    const Tile offset = b_.mul(scale, b_.constant(DType::kF32, -bias, {columns_}));
    for (int p = 0; p < tallest_; ++p) {
      b_.store({{offsets_, copy_line(chain, p)}, for_two_rows(offset)});
    }
  }

  // c0 c1 c2 … -> c0 c1 c0 c1 c2 …
  Tile for_two_rows(Tile x) {
    const Tile pairs = b_.reshape(x, {columns_ / 2, 2});
    const std::array<Tile, 2> twice = {pairs, pairs};
    return b_.reshape(b_.concat(twice, 1), {2 * columns_});
  }

  Tile load_scale(ValueId kc, ValueId first) {
    const double worth = int8_byte_scale(layout_.element) / byte_factor();
    const Tile byte = b_.constant(DType::kF32, worth, {columns_});
    if (layout_.scale_type == DType::kUndefined) return byte;
    const ValueId block = b_.div({b_.add(kc, first), b_.index(layout_.block)});
    return b_.mul(weight_.load_scale(b_, task_.panel, block), byte);
  }

  void dequantize_unit(ValueId kc, ValueId first) {
    b_.loop({b_.index(0), b_.index(unit_), b_.index(kEight)}, {}, [&](ValueId k, auto) {
      const ValueId at = b_.add(first, k);
      std::vector<Tile> fours = weight_bytes_.load(b_, task_.panel, b_.add(kc, at));
      if (fours.size() == 1) {
        const ValueId second = b_.add({b_.add(kc, at), b_.index(4)});
        fours.push_back(weight_bytes_.load(b_, task_.panel, second)[0]);
      }
      b_.store({{bytes_, b_.mul(at, b_.index(columns_))}, by_eights(fours)});
      return Nothing{};
    });
  }

  // Two tiles of [columns][4] bytes as [columns][8], flat.
  Tile by_eights(const std::vector<Tile>& fours) {
    const int count = 4 * columns_;
    const std::array<Tile, 2> flat = {b_.reshape(fours[0], {count}), b_.reshape(fours[1], {count})};
    const auto top = static_cast<int64_t>(std::countr_zero(static_cast<unsigned>(count)));
    std::vector<int64_t> bits = {0, 1, top};
    for (int64_t column_bit = 2; column_bit < top; ++column_bit) bits.push_back(column_bit);
    return b_.permute(b_.concat(flat, 0), bits, {2 * count});
  }

  void multiply(ValueId pairs, ValueId kc, ValueId units) {
    std::vector<int> heights = plan_.tile.heights;
    for (int& height : heights) height /= 2;  // pairs of rows
    for_micro_tiles(b_, heights, pairs, [&](ValueId pair, int height) {
      const ValueId strips = b_.index(columns_ / (2 * kStrip));
      b_.loop({b_.index(0), strips, b_.index(1)}, {}, [&](ValueId strip, auto) {
        multiply_strip({pair, strip, kc, kNone, height}, units);
        return Nothing{};
      });
    });
  }

  // A micro tile, and units of K under one scale of a row, from `u` on.
  struct Chain {
    ValueId pair, strip, kc, u;
    int pairs;
  };
  using Squares = std::vector<Tile>;  // [pairs][kStrip]

  void multiply_strip(Chain at, ValueId units) {
    const auto sums_at = [&](int i) {
      const ValueId pair = b_.add(at.pair, b_.index(i / kStrip));
      return codegen::Access{sums_, b_.add({line(pair), square_of(at, i % kStrip)})};
    };
    Squares sums;
    for (int i = 0; i < at.pairs * kStrip; ++i) sums.push_back(b_.load(sums_at(i), {kSquare}));
    sums = b_.loop({b_.index(0), units, b_.index(chain_)}, sums, [&](ValueId u, auto carried) {
      at.u = u;
      const Squares before(carried.begin(), carried.end());
      return add_scaled(at, is_chained() ? multiply_chain(at) : multiply_one(at), before);
    });
    for (int i = 0; i < at.pairs * kStrip; ++i) b_.store(sums_at(i), sums[static_cast<size_t>(i)]);
  }

  // Where pair of columns `c` of the strip lies in a line.
  ValueId square_of(const Chain& at, int c) {
    return b_.mul({b_.add({b_.mul(at.strip, b_.index(kStrip)), b_.index(c)}), b_.index(kSquare)});
  }

  // A unit's products times the weight's scales.
  Squares multiply_one(const Chain& at) {
    Squares t(static_cast<size_t>(at.pairs) * kStrip, b_.integer_constant(DType::kI32, 0, {2, 2}));
    multiply_unit(at, at.u, t);
    for (Tile& x : t) x = b_.cast(b_.reshape(x, {kSquare}), DType::kF32);
    for_numbers(scales_, at, at.u, t, [&](size_t s, Tile scale) { t[s] = b_.mul(t[s], scale); });
    if (has_zeros()) {
      const Squares code_sums = row_numbers(buffers_.sums, at);
      for_numbers(zeros_, at, at.u, t,
                  [&](size_t s, Tile zero) { t[s] = b_.fma(code_sums[s / kStrip], zero, t[s]); });
    }
    return t;
  }

  Squares multiply_chain(const Chain& at) {
    Squares acc, t;
    // Copies take turns, or the loads would leave the loop and moves take their place.
    const ValueId chain = b_.div(at.u, b_.index(chain_)), turn = b_.rem(chain, b_.index(2));
    for (int i = 0; i < at.pairs * kStrip; ++i) {
      const ValueId copy = b_.add({b_.mul(turn, b_.index(tallest_ * kStrip)), b_.index(i)});
      const Tile start = b_.load({starts_, b_.mul(copy, b_.index(kSquare))}, {kSquare});
      acc.push_back(b_.reshape(start, {2, 2}));
      const ValueId offset = b_.add({copy_line(chain, i / kStrip), square_of(at, i % kStrip)});
      t.push_back(b_.load({offsets_, offset}, {kSquare}));
    }
    for (int64_t i = 0; i < chain_; ++i) {
      const ValueId unit = b_.add(at.u, b_.index(i));
      multiply_unit(at, unit, acc);
      for_numbers(scales_, at, unit, t,
                  [&](size_t s, Tile scale) { t[s] = b_.fma(floats(acc[s]), scale, t[s]); });
    }
    return t;
  }

  // sums + t * scale of the row
  Squares add_scaled(const Chain& at, const Squares& t, Squares sums) {
    const Squares scales = row_numbers(buffers_.scales, at);
    for (size_t s = 0; s < sums.size(); ++s) sums[s] = b_.fma(t[s], scales[s / kStrip], sums[s]);
    return sums;
  }

  Tile floats(Tile acc) { return b_.bitcast(b_.reshape(acc, {kSquare}), DType::kF32); }

  // use(s, the weight's number of a unit) for each square s of t
  template <typename Use>
  void for_numbers(ValueId numbers, const Chain& at, ValueId unit, const Squares& t,
                   const Use& use) {
    for (int c = 0; c < kStrip; ++c) {
      const Tile number = b_.load({numbers, b_.add({line(unit), square_of(at, c)})}, {kSquare});
      for (size_t s = static_cast<size_t>(c); s < t.size(); s += kStrip) use(s, number);
    }
  }

  // acc += a unit
  void multiply_unit(const Chain& at, ValueId unit, Squares& acc) {
    const ValueId first = b_.mul(unit, b_.index(unit_ / kEight));
    for (int64_t g = 0; g < unit_ / kEight; ++g) {
      const ValueId eight = b_.add(first, b_.index(g));
      Squares codes;
      for (int p = 0; p < at.pairs; ++p) codes.push_back(load_codes(at, eight, p));
      for (int c = 0; c < kStrip; ++c) {
        // Sixteen bytes are two columns of eight, as four floats are two rows of two.
        const ValueId line_at = b_.mul(eight, b_.index(kEight * columns_));
        const ValueId from = b_.add(line_at, b_.mul({square_of(at, c), b_.index(4)}));
        const Tile bytes = b_.reshape(b_.load({bytes_, from}, {16}), {2, 8});
        for (int p = 0; p < at.pairs; ++p) {
          Tile& sum = acc[static_cast<size_t>(p * kStrip + c)];
          sum = b_.dot_i8(sum, codes[static_cast<size_t>(p)], bytes);
        }
      }
    }
  }

  Tile load_codes(const Chain& at, ValueId eight, int p) {
    const ValueId pair = b_.add({b_.add(first_pair_, at.pair), b_.index(p)});
    const ValueId within = b_.add(b_.div(at.kc, b_.index(kEight)), eight);
    const ValueId number = b_.add(b_.mul(pair, b_.index(layout_.k / kEight)), within);
    return b_.reshape(b_.load({buffers_.codes, b_.mul(number, b_.index(16))}, {16}), {2, 8});
  }

  // Of each pair of rows and a chain: r0 r0 r1 r1.
  Squares row_numbers(ValueId buffer, const Chain& at) {
    Squares out;
    for (int p = 0; p < at.pairs; ++p) {
      const ValueId pair = b_.add({b_.add(first_pair_, at.pair), b_.index(p)});
      const ValueId unit = b_.add(b_.div(at.kc, b_.index(unit_)), at.u);
      const ValueId number = b_.add(b_.mul(pair, b_.index(units_)), unit);
      out.push_back(b_.load({buffer, b_.mul(number, b_.index(kSquare))}, {kSquare}));
    }
    return out;
  }

  // A row out of the squares of its pair.
  Tile load_sums(ValueId row) {
    const ValueId two = b_.index(2), within = b_.mul(b_.rem(row, two), two);
    const ValueId from = b_.add(line(b_.div(row, two)), within);
    const Tile pairs = b_.load({sums_, from, {b_.index(kSquare), b_.index(1)}}, {columns_ / 2, 2});
    return b_.reshape(pairs, {columns_});
  }

  LaunchWriter& writer_;
  Builder& b_;
  const GemmPlan& plan_;
  const WeightReader& weight_;
  const WeightLayout& layout_;
  const Int8Buffers& buffers_;
  const int columns_;
  const int64_t unit_, units_;
  const int64_t chain_;
  const int tallest_;  // pairs of rows
  ByteWeight weight_bytes_;
  PanelTask task_;
  ValueId first_pair_ = kNone;
  ValueId starts_ = kNone, offsets_ = kNone;
  ValueId sums_ = kNone, bytes_ = kNone, scales_ = kNone, zeros_ = kNone;
};

}  // namespace

bool multiplies_row_pairs(const codegen::HostTarget& host) {
  return host.arch == codegen::HostArch::kAArch64 && host.has("i8mm");
}

GemmPlan plan_gemm_int8_pairs(GemmPlan exact, const WeightLayout& layout) {
  // Sums of bytes, sums of a chain and sums of all: 8 registers each, or 12 of two kinds. A chain's
  // offsets are in L1 beside the panel's bytes.
  const bool chained = int8_units_per_scale(layout) > 1;
  exact.tile.heights = chained ? std::vector<int>{4, 2} : std::vector<int>{6, 4, 2};
  const int64_t unit = int8_unit(layout);
  exact.k_block = std::max<int64_t>(unit, (chained ? 512 : 1024) / unit * unit);
  return exact;
}

void emit_gemm_int8_pairs(LaunchWriter& writer, const GemmPlan& plan, const WeightReader& weight,
                          const Int8Buffers& buffers, Epilogue& epilogue) {
  PairedInt8Gemm(writer, plan, weight, buffers).emit(epilogue);
}

}  // namespace tenon::kernels
