#include "kernels/llvm/scaled_dot/gemm_int8.h"

#include <fmt/format.h>

#include "kernels/llvm/scaled_dot/byte_weight.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;
using Nothing = std::vector<ValueId>;

// An integer t within r added to the bits of the float 2^23 + r gives the bits of 2^23 + r + t, for
// powers of two r up to 2^22. Sums that begin with it become floats by the fma that scales them:
// Neoverse-N1 converts a vector in the time of four sdot.
constexpr int64_t kBiasBase = 1 << 23, kBiasBaseBits = 0x4B000000;

// Blocks of 16 that share a row's scale, and what their sums of bytes stay within. Scaling each sum
// for itself would take half as long as the products.
constexpr int64_t kChain = 4, kChainRange = 1 << 20;

std::vector<int> int8_heights(const codegen::HostTarget& host) {
  if (host.arch == codegen::HostArch::kAArch64) return {3, 2, 1};  // 12 sums of each kind of 32
  if (host.vector_registers >= 32) return {6, 2, 1};
  return {3, 1};
}

class Int8Gemm {
 public:
  Int8Gemm(LaunchWriter& writer, const GemmPlan& plan, const WeightReader& weight,
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
        chain_(int8_units_per_scale(layout_, b_.type(buffers.codes).dtype)),
        bias_range_(chain_ == 1 ? 1 << 22 : kChainRange),
        weight_bytes_(b_, layout_, buffers.weight_bytes, /*zero_offset=*/true) {
    if (chain_ == 1) return;
    std::vector<double> values = int8_table(layout_);
    for (double& value : values) value *= byte_factor();
    weight_bytes_.table = b_.table(DType::kI8, values);
  }

  void emit(Epilogue& epilogue) {
    const int64_t block_units = plan_.k_block / unit_;
    const ValueId panels = b_.index(layout_.panels);
    panel_ = b_.rem(b_.task(), panels);
    const ValueId first_row = b_.mul(b_.div(b_.task(), panels), b_.index(plan_.row_block));
    const ValueId rows =
        b_.min(b_.index(plan_.row_block), b_.sub(writer_.index(plan_.rows), first_row));
    sums_ = b_.alloc(DType::kF32, plan_.row_block * columns_);
    if (needs_decoding()) bytes_ = b_.alloc(DType::kI8, plan_.k_block * columns_);
    if (has_excess()) weight_sums_ = b_.alloc(DType::kF32, block_units * columns_);
    scales_ = b_.alloc(DType::kF32, block_units * columns_);
    if (is_biased()) begin_bias(block_units);
    if (has_zeros()) zeros_ = b_.alloc(DType::kF32, block_units * columns_);
    epilogue.begin();
    b_.loop(b_.index(0), rows, b_.index(1), {}, [&](ValueId row, auto) {
      b_.store({sums_, line(row)}, b_.constant(DType::kF32, 0, {columns_}));
      return Nothing{};
    });
    const ValueId k = b_.index(layout_.k);
    b_.loop(b_.index(0), k, b_.index(plan_.k_block), {}, [&](ValueId kc, auto) {
      const ValueId count = b_.min(b_.index(plan_.k_block), b_.sub(k, kc));
      const ValueId units = b_.div(count, b_.index(unit_));
      b_.loop(b_.index(0), units, b_.index(chain_), {}, [&](ValueId u, auto) {
        prepare_units(kc, u);
        return Nothing{};
      });
      multiply(first_row, rows, kc, units);
      return Nothing{};
    });
    const ValueId column = b_.mul(panel_, b_.index(columns_));
    const ValueId extent = layout_.n % columns_ == 0 ? kNone : b_.sub(b_.index(layout_.n), column);
    b_.loop(b_.index(0), rows, b_.index(1), {}, [&](ValueId row, auto) {
      epilogue.emit({b_.add(first_row, row), column, extent},
                    b_.load({sums_, line(row)}, {columns_}));
      return Nothing{};
    });
  }

 private:
  bool needs_decoding() const { return layout_.element != DType::kI8; }
  // Codes are stored with 128 added.
  bool has_excess() const { return b_.type(buffers_.codes).dtype == DType::kU8; }
  // sdot takes four bytes from any lane of a register; vpdpbusd reads them from memory.
  int codes_at_once() const { return is_biased() && unit_ % 16 == 0 ? 16 : 4; }
  // Accumulators begin with kBias. x86 converts as fast as it multiplies.
  bool is_biased() const { return !has_excess(); }
  // e2m1 in halves is at most 12. The larger its bytes, the less a chain's sum loses beside its
  // bias.
  double byte_factor() const { return chain_ == 1 ? 1 : 8; }
  bool has_zeros() const { return layout_.zero_type != DType::kUndefined; }
  ValueId line(ValueId row) { return b_.mul(row, b_.index(columns_)); }

  // Byte group `group` (four k) of the panel, and where it begins.
  std::pair<ValueId, ValueId> group_at(ValueId kc, ValueId group) {
    if (needs_decoding()) return {bytes_, b_.mul(group, b_.index(4 * columns_))};
    const ValueId first = b_.div(b_.add(b_.mul(panel_, b_.index(layout_.k)), kc), b_.index(4));
    return {buffers_.weight_bytes, b_.mul(b_.add(first, group), b_.index(4 * columns_))};
  }

  Tile load_group(ValueId kc, ValueId group) {
    const auto [buffer, offset] = group_at(kc, group);
    Tile bytes = b_.load({buffer, offset}, {4 * columns_});
    if (b_.type(bytes).dtype != DType::kI8) bytes = b_.bitcast(bytes, DType::kI8);
    return b_.reshape(bytes, {columns_, 4});
  }

  // Decodes the codes of units under one scale of a row; their own scales, zero points and sums of
  // bytes go beside them.
  void prepare_units(ValueId kc, ValueId u) {
    std::vector<Tile> scales;
    for (int64_t i = 0; i < chain_; ++i) {
      const ValueId unit = b_.add(u, b_.index(i));
      const ValueId first = b_.mul(unit, b_.index(unit_));  // k within the block
      if (needs_decoding()) decode_unit(kc, first);
      if (has_excess()) sum_unit(kc, unit, first);
      scales.push_back(load_scale(kc, first));
    }
    if (is_biased()) {
      store_offsets(u, scales);
    } else {
      b_.store({scales_, line(u)}, scales[0]);
    }
    if (!has_zeros()) return;
    const ValueId block = b_.div(b_.add(kc, b_.mul(u, b_.index(unit_))), b_.index(layout_.block));
    Tile zero = weight_.load_zero(b_, panel_, block);
    if (is_biased()) zero = b_.mul(zero, b_.unary(Fn::kNeg, scales[0]));
    b_.store({zeros_, line(u)}, zero);
  }

  Tile load_scale(ValueId kc, ValueId first) {
    const double worth = int8_byte_scale(layout_.element) / byte_factor();
    const Tile byte = b_.constant(DType::kF32, worth, {columns_});
    if (layout_.scale_type == DType::kUndefined) return byte;
    const ValueId block = b_.div(b_.add(kc, first), b_.index(layout_.block));
    const Tile scale = b_.mul(weight_.load_scale(b_, panel_, block), byte);
    if (!is_biased() || layout_.scale_type != DType::kF32) return scale;
    // The bias times a scale must be exact: 22 bits remain.
    const Tile scaled = b_.mul(scale, b_.constant(DType::kF32, 5, {columns_}));
    return b_.add(scaled, b_.sub(scale, scaled));
  }

  // sdot and fma overwrite what they add to. Every row of a micro tile has its own copy of what its
  // accumulators begin with, so that these come by loads and not by moves between registers, which
  // would take the time of an sdot.
  void begin_bias(int64_t block_units) {
    const auto copies = static_cast<int64_t>(tallest());
    starts_ = b_.alloc(DType::kI32, 2 * copies * columns_);
    offsets_ = b_.alloc(DType::kF32, block_units / chain_ * copies * columns_);
    b_.loop(b_.index(0), b_.index(2 * copies), b_.index(1), {}, [&](ValueId row, auto) {
      const int64_t bits = kBiasBaseBits + bias_range_;
      b_.store({starts_, line(row)}, b_.integer_constant(DType::kI32, bits, {columns_}));
      return Nothing{};
    });
  }

  // What scaling the bias gives too much, negated. An accumulator goes on from unit to unit of a
  // chain, and after each counts with the difference of two scales: t1 (s1 - s2) + (t1 + t2) s2. In
  // between, what is not yet taken off, the bias times the next scale, rounds: a quarter at most of
  // what rounding one activation costs at that scale's smallest weight.
  void store_offsets(ValueId u, std::vector<Tile>& scales) {
    const auto bias = static_cast<double>(kBiasBase + bias_range_);
    const Tile offset = b_.mul(scales[0], b_.constant(DType::kF32, -bias, {columns_}));
    for (size_t row = 0; row < tallest(); ++row) {
      b_.store({offsets_, copy_line(b_.div(u, b_.index(chain_)), row)}, offset);
    }
    for (int64_t i = 0; i < chain_; ++i) {
      const auto at = static_cast<size_t>(i);
      const Tile factor = i + 1 < chain_ ? b_.sub(scales[at], scales[at + 1]) : scales[at];
      b_.store({scales_, line(b_.add(u, b_.index(i)))}, factor);
    }
  }

  size_t tallest() const { return static_cast<size_t>(plan_.tile.heights.front()); }
  // Row r's copy of a line of numbers.
  ValueId copy_line(ValueId number, size_t r) {
    const auto copies = static_cast<int64_t>(tallest());
    return line(b_.add(b_.mul(number, b_.index(copies)), b_.index(static_cast<int64_t>(r))));
  }

  // 128 times the sum of a unit's bytes: what codes with 128 added give too much.
  void sum_unit(ValueId kc, ValueId u, ValueId first) {
    const Tile ones = b_.integer_constant(DType::kU8, 1, {1, 4});
    Tile sum = b_.integer_constant(DType::kI32, 0, {1, columns_});
    sum = b_.loop(b_.index(0), b_.index(unit_ / 4), b_.index(1), {sum},
                  [&](ValueId g, auto carried) -> std::vector<ValueId> {
                    const ValueId group = b_.add(b_.div(first, b_.index(4)), g);
                    return {b_.dot_i8(carried[0], ones, load_group(kc, group))};
                  })[0];
    const Tile excess = b_.mul(b_.cast(b_.reshape(sum, {columns_}), DType::kF32),
                               b_.constant(DType::kF32, 128, {columns_}));
    b_.store({weight_sums_, line(u)}, excess);
  }

  void decode_unit(ValueId kc, ValueId first) {
    const int64_t step = weight_bytes_.k_per_load();
    b_.loop(b_.index(0), b_.index(unit_), b_.index(step), {}, [&](ValueId k, auto) {
      const ValueId at = b_.add(first, k);
      const std::vector<Tile> groups = weight_bytes_.load(b_, panel_, b_.add(kc, at));
      for (size_t i = 0; i < groups.size(); ++i) {
        const ValueId group = b_.add(b_.div(at, b_.index(4)), b_.index(static_cast<int64_t>(i)));
        const ValueId to = b_.mul(group, b_.index(4 * columns_));
        b_.store({bytes_, to}, b_.reshape(groups[i], {4 * columns_}));
      }
      return Nothing{};
    });
  }

  void multiply(ValueId first_row, ValueId rows, ValueId kc, ValueId units) {
    ValueId done = b_.index(0);
    for (const int height : plan_.tile.heights) {
      const ValueId tiles = b_.div(b_.sub(rows, done), b_.index(height));
      const ValueId end = b_.add(done, b_.mul(tiles, b_.index(height)));
      b_.loop(done, end, b_.index(height), {}, [&](ValueId row, auto) {
        if (is_biased()) {
          multiply_biased(first_row, row, kc, units, height);
          return Nothing{};
        }
        const codegen::Access at{sums_, line(row)};
        Tile sums = b_.load(at, {height, columns_});
        sums = b_.loop(b_.index(0), units, b_.index(1), {sums}, [&](ValueId u, auto carried) {
          return std::vector<ValueId>{add_unit(b_.add(first_row, row), kc, u, height, carried[0])};
        })[0];
        b_.store(at, sums);
        return Nothing{};
      });
      done = end;
    }
  }

  // Units of K under one scale of a row, from `u` on.
  struct Chain {
    ValueId row, kc, u;
  };

  void multiply_biased(ValueId first_row, ValueId row, ValueId kc, ValueId units, int height) {
    const auto sums_at = [&](int r) {
      return codegen::Access{sums_, line(b_.add(row, b_.index(r)))};
    };
    std::vector<Tile> sums;
    for (int r = 0; r < height; ++r) sums.push_back(b_.load(sums_at(r), {columns_}));
    sums = b_.loop(b_.index(0), units, b_.index(chain_), sums, [&](ValueId u, auto carried) {
      return add_chain({b_.add(first_row, row), kc, u}, {carried.begin(), carried.end()});
    });
    for (int r = 0; r < height; ++r) b_.store(sums_at(r), sums[static_cast<size_t>(r)]);
  }

  std::vector<Tile> add_chain(const Chain& at, std::vector<Tile> sums) {
    std::vector<Tile> acc, t;
    // Copies take turns, or the loads would leave the loop and moves take their place.
    const ValueId chain = b_.div(at.u, b_.index(chain_)), turn = b_.rem(chain, b_.index(2));
    for (size_t r = 0; r < sums.size(); ++r) {
      const Tile start = b_.load({starts_, copy_line(turn, r)}, {columns_});
      acc.push_back(b_.reshape(start, {1, columns_}));
      t.push_back(b_.load({offsets_, copy_line(chain, r)}, {columns_}));
    }
    for (int64_t i = 0; i < chain_; ++i) {
      multiply_unit(at, i, acc);
      const Tile scale = b_.load({scales_, line(b_.add(at.u, b_.index(i)))}, {columns_});
      for (size_t r = 0; r < sums.size(); ++r) {
        t[r] = b_.fma(b_.bitcast(b_.reshape(acc[r], {columns_}), DType::kF32), scale, t[r]);
      }
    }
    for (size_t r = 0; r < sums.size(); ++r) {
      if (has_zeros()) {
        const Tile zero = b_.load({zeros_, line(at.u)}, {columns_});
        t[r] = b_.fma(row_number(buffers_.sums, at, r), zero, t[r]);
      }
      sums[r] = b_.fma(t[r], row_number(buffers_.scales, at, r), sums[r]);
    }
    return sums;
  }

  // acc += unit i of the chain
  void multiply_unit(const Chain& at, int64_t i, std::vector<Tile>& acc) {
    const int wide = codes_at_once();
    const ValueId groups = b_.mul(b_.add(at.u, b_.index(i)), b_.index(unit_ / 4));
    std::vector<Tile> codes(acc.size());
    for (int64_t g = 0; g < unit_ / 4; ++g) {
      const Tile bytes = load_group(at.kc, b_.add(groups, b_.index(g)));
      for (size_t r = 0; r < acc.size(); ++r) {
        if (4 * g % wide == 0) codes[r] = load_codes(at, r, i * unit_ + 4 * g);
        acc[r] = b_.dot_i8(acc[r], b_.slice(codes[r], {0, 4 * g % wide}, {1, 4}), bytes);
      }
    }
  }

  Tile load_codes(const Chain& at, size_t r, int64_t first) {
    const ValueId k = b_.add(at.kc, b_.add(b_.mul(at.u, b_.index(unit_)), b_.index(first)));
    const ValueId row = b_.add(at.row, b_.index(static_cast<int64_t>(r)));
    const ValueId from = b_.add(b_.mul(row, b_.index(layout_.k)), k);
    return b_.load({buffers_.codes, from}, {1, codes_at_once()});
  }

  // The number of a row and a chain, for every column.
  Tile row_number(ValueId buffer, const Chain& at, size_t r) {
    const ValueId unit = b_.add(b_.div(at.kc, b_.index(unit_)), at.u);
    const ValueId row = b_.add(at.row, b_.index(static_cast<int64_t>(r)));
    const ValueId from = b_.add(b_.mul(row, b_.index(units_)), unit);
    return b_.splat(b_.load({buffer, from, {}, {}}, {}), {columns_});
  }

  // A number per row, repeated along the columns.
  Tile row_numbers(ValueId buffer, ValueId row, ValueId kc, ValueId u, int height) {
    const ValueId unit = b_.add(b_.div(kc, b_.index(unit_)), u);
    const ValueId at = b_.add(b_.mul(row, b_.index(units_)), unit);
    const Tile column = b_.load({buffer, at, {b_.index(units_), b_.index(1)}}, {height, 1});
    return b_.broadcast(column, {height, columns_});
  }

  Tile panel_numbers(ValueId scratch, ValueId u, int height) {
    return b_.broadcast(b_.load({scratch, line(u)}, {columns_}), {height, columns_});
  }

  Tile add_unit(ValueId row, ValueId kc, ValueId u, int height, Tile sums) {
    const ValueId k = b_.index(layout_.k);
    const ValueId first = b_.add(kc, b_.mul(u, b_.index(unit_)));
    const ValueId a_offset = b_.add(b_.mul(row, k), first);
    Tile acc = b_.integer_constant(DType::kI32, 0, {height, columns_});
    for (int64_t g = 0; g < unit_ / 4; ++g) {
      const ValueId at = b_.add(a_offset, b_.index(4 * g));
      const Tile a = b_.load({buffers_.codes, at, {k, b_.index(1)}}, {height, 4});
      const ValueId group = b_.add(b_.mul(u, b_.index(unit_ / 4)), b_.index(g));
      acc = b_.dot_i8(acc, a, load_group(kc, group));
    }
    Tile t = b_.sub(b_.cast(acc, DType::kF32), panel_numbers(weight_sums_, u, height));
    if (has_zeros()) {
      const Tile code_sums = row_numbers(buffers_.sums, row, kc, u, height);
      t = b_.sub(t, b_.mul(code_sums, panel_numbers(zeros_, u, height)));
    }
    t = b_.mul(t, panel_numbers(scales_, u, height));
    return b_.fma(t, row_numbers(buffers_.scales, row, kc, u, height), sums);
  }

  LaunchWriter& writer_;
  Builder& b_;
  const GemmPlan& plan_;
  const WeightReader& weight_;
  const WeightLayout& layout_;
  const Int8Buffers& buffers_;
  const int columns_;
  const int64_t unit_, units_;
  const int64_t chain_, bias_range_;
  ByteWeight weight_bytes_;
  ValueId panel_ = kNone;
  ValueId starts_ = kNone, offsets_ = kNone;
  ValueId sums_ = kNone, bytes_ = kNone, weight_sums_ = kNone, scales_ = kNone, zeros_ = kNone;
};

}  // namespace

int64_t int8_units_per_scale(const WeightLayout& layout, DType code_type) {
  const bool nvfp4 = layout.element == DType::kF4E2M1 && layout.scale_type == DType::kF8E4M3FN;
  const bool whole = layout.block == 16 && layout.k % (16 * kChain) == 0;
  return code_type == DType::kI8 && nvfp4 && whole ? kChain : 1;
}

Support supports_int8(const WeightLayout& layout, const codegen::HostTarget& host) {
  const DType element = layout.element;
  const bool known = element == DType::kF4E2M1 || element == DType::kI4 || element == DType::kU4 ||
                     element == DType::kI8 || (element == DType::kU8 && layout.zero_offset == 128);
  if (!known) return Support::no(fmt::format("{} weights do not fit signed bytes", name(element)));
  if (element == DType::kI8 && layout.zero_offset != 0) return Support::no("int8 with an offset");
  if (layout.block % 8 != 0) return Support::no("blocks are not whole eights");
  if (!host.has("avx2") && !host.has("dotprod")) {
    return Support::no("this CPU has no byte products");
  }
  return Support::yes();
}

int64_t int8_unit(const WeightLayout& layout) {
  for (int64_t unit = 128; unit > 8; unit -= 8) {
    if (layout.block % unit == 0) return unit;
  }
  return 8;
}

GemmPlan plan_gemm_int8(GemmPlan exact, const WeightLayout& layout,
                        const codegen::HostTarget& host) {
  const bool chained = int8_units_per_scale(layout, int8_code_type(host)) > 1;
  exact.tile.heights = chained ? std::vector<int>{2, 1} : int8_heights(host);
  const int64_t unit = int8_unit(layout);
  // What is decoded of a panel stays in L1 with what begins and ends its sums.
  const int64_t target = host.arch == codegen::HostArch::kAArch64 ? 1024 : 512;
  exact.k_block = std::max<int64_t>(unit, target / unit * unit);
  return exact;
}

void emit_gemm_int8(LaunchWriter& writer, const GemmPlan& plan, const WeightReader& weight,
                    const Int8Buffers& buffers, Epilogue& epilogue) {
  Int8Gemm(writer, plan, weight, buffers).emit(epilogue);
}

}  // namespace tenon::kernels
