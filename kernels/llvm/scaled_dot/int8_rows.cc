#include "kernels/llvm/scaled_dot/int8_rows.h"

#include <array>
#include <optional>

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

constexpr int64_t kPerTask = 1024;  // elements of a row that one task takes
// Added to a small number it leaves the nearest integer, halves to even, in the low bits.
constexpr double kRounder = 12582912;  // 1.5 * 2^23

// Of each eight elements the even ones, then the odd ones.
Tile evens_first(Builder& b, Tile x) {
  const int count = b.type(x).shape[0];
  const Tile pairs = b.reshape(x, {count / 2, 2});
  const auto half = [&](int64_t first) {
    return b.reshape(b.slice(pairs, {0, first}, {count / 2, 1}), {count / 8, 4});
  };
  const std::array<Tile, 2> halves = {half(0), half(1)};
  return b.reshape(b.concat(halves, 1), {count});
}

// Where the codes and the numbers of a row go that lies beside another; see Int8Order.
struct PairedRow {
  Builder& b;
  ValueId pair, half;  // of the row
  ValueId together;    // rows side by side, 1 or 2
  int64_t k, units;

  void store_codes(ValueId buffer, ValueId first, Tile codes) const {
    const ValueId eight = b.index(8);
    const ValueId line = b.add({b.mul(pair, b.index(k / 8)), b.div(first, eight)});
    const ValueId at = b.mul(b.add(b.mul(line, together), half), eight);
    const std::vector<int> eights = {b.type(codes).shape[0] / 8, 8};
    b.store({{buffer, at, {b.mul(together, eight), b.index(1)}}, b.reshape(codes, eights)});
  }

  void store_number(ValueId buffer, ValueId unit, Tile number) const {
    const ValueId line = b.add(b.mul(pair, b.index(units)), unit);
    const ValueId at = b.mul(b.add(b.mul(line, together), half), together);
    b.store({buffer, at}, number);
    b.store({buffer, b.add(at, b.sub(together, b.index(1)))}, number);
  }
};

// A row's units in turn: their codes, scales and sums of codes.
struct RoundedRow {
  Builder& b;
  const Int8Units& cut;
  bool split_eights;
  ValueId from, codes, scales, sums;  // buffers
  ValueId row;
  int64_t k, units;
  Tile excess = kNone;              // i32[], what codes are stored too large by
  std::optional<PairedRow> paired;  // none: rows follow each other

  // Units under one scale, from `u` on.
  void emit(ValueId u) const {
    const ValueId begin = b.add({b.mul(row, b.index(k)), b.mul(u, b.index(cut.unit))});
    const Tile whole = b.load({from, begin}, {static_cast<int>(cut.unit * cut.per_scale)});
    const Tile largest = b.reduce(Fn::kMax, b.unary(Fn::kAbs, whole), 0);
    const Tile scale = b.mul(largest, b.constant(DType::kF32, 1.0 / 127));
    const Tile empty = b.compare(Fn::kEqual, largest, b.constant(DType::kF32, 0));
    const Tile inverse =
        b.select({empty, b.constant(DType::kF32, 0), b.div(b.constant(DType::kF32, 127), largest)});
    for (int64_t i = 0; i < cut.per_scale; ++i) emit_unit(begin, u, i, scale, inverse);
  }

 private:
  // Unit i of those from `u` on, whose elements begin at `begin`.
  void emit_unit(ValueId begin, ValueId u, int64_t i, Tile scale, Tile inverse) const {
    const int width = static_cast<int>(cut.unit);
    const ValueId at = b.add(begin, b.index(i * cut.unit));
    const ValueId out = b.add({b.add(b.mul(row, b.index(units)), u), b.index(i)});
    const Tile numbers = b.mul({b.load({from, at}, {width}), b.splat(inverse, {width})});
    const Tile rounder = b.constant(DType::kF32, kRounder, {width});
    const Tile rounded = b.add(numbers, rounder);
    const Tile stored = codes_of(rounded);
    const auto sum = [&] { return b.reduce(Fn::kAdd, b.sub(rounded, rounder), 0); };
    if (paired) {
      const ValueId number = b.add(u, b.index(i));
      paired->store_codes(codes, b.mul(number, b.index(cut.unit)), stored);
      paired->store_number(scales, number, scale);
      paired->store_number(sums, number, sum());
      return;
    }
    b.store({codes, at}, stored);
    b.store({scales, out}, scale);
    b.store({sums, out}, sum());
  }

  // The low bits of what kRounder was added to.
  Tile codes_of(Tile rounded) const {
    Tile stored = b.bitcast(rounded, DType::kI32);
    if (excess != kNone) stored = b.add(stored, b.splat(excess, b.type(rounded).shape));
    stored = b.cast(stored, b.type(codes).dtype);
    return split_eights ? evens_first(b, stored) : stored;
  }
};

}  // namespace

DType int8_code_type(const codegen::HostTarget& host) {
  return host.arch == codegen::HostArch::kAArch64 ? DType::kI8 : DType::kU8;
}

Int8Rows int8_rows(const ScaledDotProblem& problem, BufferArgument a, const Int8Units& cut,
                   const Int8Order& order, DType code_type, Lowered& lowered) {
  const int64_t unit = cut.unit, k = problem.k.value(), units = k / unit;
  Int8Rows rows;
  const Dim room = order.pairs ? ceil_div(problem.rows, 2) * 2 : problem.rows;
  const int64_t number_bytes = order.pairs ? 8 : 4;
  rows.codes = lowered.add_scratch(room * k);
  rows.scales = lowered.add_scratch(room * units * number_bytes);
  rows.sums = lowered.add_scratch(room * units * number_bytes);

  LaunchWriter writer("int8_rows");
  Builder& b = writer.builder;
  const ValueId from = writer.buffer("a", DType::kF32, a);
  const ValueId codes = writer.buffer("codes", code_type, rows.codes);
  const ValueId scales = writer.buffer("scales", DType::kF32, rows.scales);
  const ValueId sums = writer.buffer("sums", DType::kF32, rows.sums);
  if (order.pairs || code_type == DType::kU8) writer.declare(problem.rows);

  const int64_t units_per_task =
      std::max<int64_t>(1, kPerTask / unit / cut.per_scale) * cut.per_scale;
  const int64_t tasks_per_row = (units + units_per_task - 1) / units_per_task;
  const ValueId row = b.div({b.task(), b.index(tasks_per_row)});
  const ValueId first = b.mul({b.rem({b.task(), b.index(tasks_per_row)}), b.index(units_per_task)});
  const ValueId last = b.min({b.add(first, b.index(units_per_task)), b.index(units)});
  RoundedRow rounded{b,     cut, order.split_eights, from, codes, scales, sums, row, k, units,
                     kNone, {}};
  if (code_type == DType::kU8) {
    const ValueId several = b.min({b.sub(writer.index(problem.rows), b.index(1)), b.index(1)});
    rounded.excess = b.from_index(b.mul(several, b.index(128)), DType::kI32);
  }
  if (order.pairs) {
    const ValueId together = b.min({writer.index(problem.rows), b.index(2)});
    rounded.paired.emplace(
        PairedRow{b, b.div(row, together), b.rem(row, together), together, k, units});
  }
  b.loop(first, last, b.index(cut.per_scale), {}, [&](ValueId u, auto) {
    rounded.emit(u);
    return std::vector<ValueId>{};
  });
  lowered.launches.push_back(
      writer.finish(problem.rows * tasks_per_row, std::min(k, kPerTask) * 2));
  return rows;
}

}  // namespace tenon::kernels
