#include "kernels/llvm/scaled_dot/gemm_int8.h"

#include <fmt/format.h>

#include "kernels/llvm/scaled_dot/byte_weight.h"
#include "kernels/llvm/scaled_dot/int8_bias.h"
#include "kernels/llvm/scaled_dot/panel_task.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;
using Nothing = std::vector<ValueId>;

// Blocks of 16 that share a row's scale. Scaling each sum for itself would take half as long as the
// products.
constexpr int64_t kChain = 4;

// Rows whose sums fit the registers: of bytes, across units, and across those of a chain.
std::vector<int> int8_heights(const codegen::HostTarget& host, bool chained) {
  if (host.arch == codegen::HostArch::kAArch64) {
    return chained ? std::vector<int>{2, 1} : std::vector<int>{3, 2, 1};
  }
  // AMX takes many rows of NVFP4: two loops for few rows compile sooner than three.
  if (host.tiles && chained) return {4, 1};
  if (host.vector_registers >= 32) return {chained ? 4 : 6, 2, 1};
  return {chained ? 2 : 3, 1};
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
        chain_(int8_units_per_scale(layout_)),
        bias_range_(chain_ == 1 ? kBiasRange : kChainRange),
        weight_bytes_(b_, layout_, buffers.weight_bytes, /*zero_offset=*/true, byte_factor()) {}

  void emit(Epilogue& epilogue) {
    const int64_t block_units = plan_.k_block / unit_;
    task_ = locate_panel_task(writer_, layout_.panels, plan_.row_block, plan_.rows);
    sums_ = b_.alloc(DType::kF32, plan_.row_block * columns_);
    if (needs_dequantizing()) bytes_ = b_.alloc(DType::kI8, plan_.k_block * columns_);
    scales_ = b_.alloc(DType::kF32, block_units * columns_);
    begin_bias(block_units / chain_);
    if (has_zeros()) zeros_ = b_.alloc(DType::kF32, block_units * columns_);
    epilogue.begin();
    clear_sums(b_, sums_, columns_, task_.rows);
    for_k_blocks(b_, b_.index(layout_.k), plan_.k_block, [&](ValueId kc, ValueId count) {
      const ValueId units = b_.div(count, b_.index(unit_));
      b_.loop({b_.index(0), units, b_.index(chain_)}, {}, [&](ValueId u, auto) {
        prepare_units(kc, u);
        return Nothing{};
      });
      for_micro_tiles(b_, plan_.tile.heights, task_.rows,
                      [&](ValueId row, int height) { multiply_rows(row, kc, units, height); });
    });
    store_panel_rows(writer_, task_, {columns_, layout_.n}, epilogue, [&](ValueId row) {
      return b_.load({sums_, line(row)}, {columns_});
    });
  }

 private:
  bool needs_dequantizing() const { return layout_.element != DType::kI8; }
  // Codes are stored with 128 added.
  bool has_excess() const { return b_.type(buffers_.codes).dtype == DType::kU8; }
  // sdot takes four bytes from any lane of a register; vpdpbusd wants them repeated, as a load can.
  int codes_at_once() const { return !has_excess() && unit_ % 16 == 0 ? 16 : 4; }
  // e2m1 in halves is at most 12. The larger its bytes, the less a chain's sum loses beside its
  // bias.
  double byte_factor() const { return chain_ == 1 ? 1 : 8; }
  bool has_zeros() const { return layout_.zero_type != DType::kUndefined; }
  ValueId line(ValueId row) { return b_.mul(row, b_.index(columns_)); }

  // Byte group `group` (four k) of the panel, and where it begins.
  std::pair<ValueId, ValueId> group_at(ValueId kc, ValueId group) {
    if (needs_dequantizing()) return {bytes_, b_.mul(group, b_.index(4 * columns_))};
    const ValueId first =
        b_.div({b_.add(b_.mul(task_.panel, b_.index(layout_.k)), kc), b_.index(4)});
    return {buffers_.weight_bytes, b_.mul({b_.add(first, group), b_.index(4 * columns_)})};
  }

  Tile load_group(ValueId kc, ValueId group) {
    const auto [buffer, offset] = group_at(kc, group);
    Tile bytes = b_.load({buffer, offset}, {4 * columns_});
    if (b_.type(bytes).dtype != DType::kI8) bytes = b_.bitcast(bytes, DType::kI8);
    return b_.reshape(bytes, {columns_, 4});
  }

  // Unpacks the codes of units under one scale of a row; their own scales, zero points and sums of
  // bytes go beside them.
  void prepare_units(ValueId kc, ValueId u) {
    std::vector<Tile> scales, sums;
    for (int64_t i = 0; i < chain_; ++i) {
      const ValueId first =
          b_.mul({b_.add(u, b_.index(i)), b_.index(unit_)});  // k within the block
      if (needs_dequantizing()) dequantize_unit(kc, first);
      if (has_excess()) sums.push_back(sum_unit(kc, first));
      scales.push_back(load_scale(kc, first));
    }
    if (has_excess()) store_starts(u, sums);
    store_offsets(u, scales, sums);
    if (!has_zeros()) return;
    const ValueId block = b_.div({b_.add(kc, b_.mul(u, b_.index(unit_))), b_.index(layout_.block)});
    const Tile zero = weight_.load_zero(b_, task_.panel, block);
    b_.store({{zeros_, line(u)}, b_.mul(zero, b_.unary(Fn::kNeg, scales[0]))});
  }

  Tile load_scale(ValueId kc, ValueId first) {
    const double worth = int8_byte_scale(layout_.element) / byte_factor();
    const Tile byte = b_.constant(DType::kF32, worth, {columns_});
    if (layout_.scale_type == DType::kUndefined) return byte;
    const ValueId block = b_.div({b_.add(kc, first), b_.index(layout_.block)});
    const Tile scale = b_.mul(weight_.load_scale(b_, task_.panel, block), byte);
    return layout_.scale_type == DType::kF32 ? scale_under_bias(b_, scale) : scale;
  }

  // sdot and fma overwrite what they add to. On Arm every row of a micro tile has its own copy of
  // what its accumulators begin with, so that these come by loads and not by moves between
  // registers, which would take the time of an sdot. x86 moves them for nothing.
  size_t copies() const { return has_excess() ? 1 : tallest(); }

  void begin_bias(int64_t chains) {
    const auto rows = static_cast<int64_t>(copies());
    offsets_ = b_.alloc(DType::kF32, chains * rows * columns_);
    starts_ = b_.alloc(DType::kI32, (has_excess() ? chains : 2 * rows) * columns_);
    if (has_excess()) return;  // each chain has a start of its own
    b_.loop({b_.index(0), b_.index(2 * rows), b_.index(1)}, {}, [&](ValueId row, auto) {
      b_.store({{starts_, line(row)}, bias_bits()});
      return Nothing{};
    });
  }

  Tile bias_bits() {
    return b_.integer_constant(DType::kI32, kBiasBaseBits + bias_range_, {columns_});
  }

  // Codes with 128 added give 128 times the sum of a chain's bytes too much.
  void store_starts(ValueId u, const std::vector<Tile>& sums) {
    Tile all = sums[0];
    for (size_t i = 1; i < sums.size(); ++i) all = b_.add(all, sums[i]);
    const Tile excess = b_.mul(all, b_.integer_constant(DType::kI32, 128, {columns_}));
    b_.store({{starts_, line(b_.div(u, b_.index(chain_)))}, b_.sub(bias_bits(), excess)});
  }

  // What scaling the bias gives too much, negated. An accumulator goes on from unit to unit of a
  // chain, and after each counts with the difference of two scales: t1 (s1 - s2) + (t1 + t2) s2. In
  // between, what is not yet taken off, the bias times the next scale, rounds: a quarter at most of
  // what rounding one activation costs at that scale's smallest weight. The excess of later units
  // is off already when the first ones are scaled: the offset gives it back.
  void store_offsets(ValueId u, const std::vector<Tile>& scales, const std::vector<Tile>& sums) {
    const auto bias = static_cast<double>(kBiasBase + bias_range_);
    Tile offset = b_.constant(DType::kF32, 0, {columns_});
    for (size_t i = 1; i < sums.size(); ++i) {
      const Tile excess =
          b_.mul({b_.cast(sums[i], DType::kF32), b_.constant(DType::kF32, 128, {columns_})});
      offset = b_.fma(excess, b_.sub(scales[0], scales[i]), offset);
    }
    offset = b_.fma(scales[0], b_.constant(DType::kF32, -bias, {columns_}), offset);
    for (size_t row = 0; row < copies(); ++row) {
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
    const auto rows = static_cast<int64_t>(copies());
    const auto row = static_cast<int64_t>(r) % rows;
    return line(b_.add({b_.mul(number, b_.index(rows)), b_.index(row)}));
  }

  // The sum of a unit's bytes.
  Tile sum_unit(ValueId kc, ValueId first) {
    const Tile ones = b_.integer_constant(DType::kU8, 1, {1, 4});
    Tile sum = b_.integer_constant(DType::kI32, 0, {1, columns_});
    sum = b_.loop({b_.index(0), b_.index(unit_ / 4), b_.index(1)}, {sum},
                  [&](ValueId g, auto carried) -> std::vector<ValueId> {
                    const ValueId group = b_.add(b_.div(first, b_.index(4)), g);
                    return {b_.dot_i8(carried[0], ones, load_group(kc, group))};
                  })[0];
    return b_.reshape(sum, {columns_});
  }

  void dequantize_unit(ValueId kc, ValueId first) {
    const int64_t step = weight_bytes_.k_per_load();
    b_.loop({b_.index(0), b_.index(unit_), b_.index(step)}, {}, [&](ValueId k, auto) {
      const ValueId at = b_.add(first, k);
      const std::vector<Tile> groups = weight_bytes_.load(b_, task_.panel, b_.add(kc, at));
      for (size_t i = 0; i < groups.size(); ++i) {
        const ValueId group = b_.add({b_.div(at, b_.index(4)), b_.index(static_cast<int64_t>(i))});
        const ValueId to = b_.mul(group, b_.index(4 * columns_));
        b_.store({bytes_, to}, b_.reshape(groups[i], {4 * columns_}));
      }
      return Nothing{};
    });
  }

  // Units of K under one scale of a row, from `u` on.
  struct Chain {
    ValueId row, kc, u;
  };

  void multiply_rows(ValueId row, ValueId kc, ValueId units, int height) {
    const auto sums_at = [&](int r) {
      return codegen::Access{sums_, line(b_.add(row, b_.index(r)))};
    };
    std::vector<Tile> sums;
    for (int r = 0; r < height; ++r) sums.push_back(b_.load(sums_at(r), {columns_}));
    sums = b_.loop({b_.index(0), units, b_.index(chain_)}, sums, [&](ValueId u, auto carried) {
      return add_chain({b_.add(task_.first_row, row), kc, u}, {carried.begin(), carried.end()});
    });
    for (int r = 0; r < height; ++r) b_.store(sums_at(r), sums[static_cast<size_t>(r)]);
  }

  std::vector<Tile> add_chain(const Chain& at, std::vector<Tile> sums) {
    std::vector<Tile> acc, t;
    // Copies take turns, or the loads would leave the loop and moves take their place.
    const ValueId chain = b_.div(at.u, b_.index(chain_));
    const ValueId turn = has_excess() ? chain : b_.rem(chain, b_.index(2));
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
    const ValueId groups = b_.mul({b_.add(at.u, b_.index(i)), b_.index(unit_ / 4)});
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
    const ValueId k = b_.add(at.kc, b_.add({b_.mul(at.u, b_.index(unit_)), b_.index(first)}));
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
  PanelTask task_;
  ValueId starts_ = kNone, offsets_ = kNone;
  ValueId sums_ = kNone, bytes_ = kNone, scales_ = kNone, zeros_ = kNone;
};

}  // namespace

int64_t int8_units_per_scale(const WeightLayout& layout) {
  const bool nvfp4 = layout.element == DType::kF4E2M1 && layout.block == 16;
  return nvfp4 && layout.k % (16 * kChain) == 0 ? kChain : 1;
}

Support supports_int8(const WeightLayout& layout, const codegen::HostTarget& host) {
  const DType element = layout.element;
  const bool known = element == DType::kF4E2M1 || element == DType::kI4 || element == DType::kU4 ||
                     element == DType::kI8;
  if (!known) return Support::no(fmt::format("{} weights do not fit int8", name(element)));
  if (element == DType::kI8 && layout.zero_offset != 0)
    return Support::no("int8 weights with a zero point are not supported");
  if (layout.block % 8 != 0) return Support::no("block_size is not a multiple of 8");
  if (!host.has("avx2") && !host.has("dotprod")) {
    return Support::no("this CPU has neither AVX2 nor dotprod");
  }
  return Support::yes();
}

bool has_byte_products(const codegen::HostTarget& host) {
  return host.arch == codegen::HostArch::kAArch64 || host.has("avx512vnni") || host.has("avxvnni");
}

int64_t int8_unit(const WeightLayout& layout) {
  for (int64_t unit = 128; unit > 8; unit -= 8) {
    if (layout.block % unit == 0) return unit;
  }
  return 8;
}

GemmPlan plan_gemm_int8(GemmPlan exact, const WeightLayout& layout,
                        const codegen::HostTarget& host) {
  exact.tile.heights = int8_heights(host, int8_units_per_scale(layout) > 1);
  const int64_t unit = int8_unit(layout);
  // What is unpacked of a panel stays in L1 with what begins and ends its sums.
  const int64_t target = host.arch == codegen::HostArch::kAArch64 ? 1024 : 512;
  exact.k_block = std::max<int64_t>(unit, target / unit * unit);
  return exact;
}

void emit_gemm_int8(LaunchWriter& writer, const GemmPlan& plan, const WeightReader& weight,
                    const Int8Buffers& buffers, Epilogue& epilogue) {
  Int8Gemm(writer, plan, weight, buffers).emit(epilogue);
}

}  // namespace tenon::kernels
