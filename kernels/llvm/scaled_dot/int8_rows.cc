#include "kernels/llvm/scaled_dot/int8_rows.h"

#include <array>

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::ValueId;

constexpr int64_t kPerTask = 1024;  // elements of a row that one task takes
// Added to a small number it leaves the nearest integer, halves to even, in the low bits.
constexpr double kRounder = 12582912;  // 1.5 * 2^23

BufferArgument add_scratch(Lowered& lowered, const Dim& bytes) {
  lowered.scratch.push_back(bytes);
  return BufferArgument::scratch(static_cast<int32_t>(lowered.scratch.size()) - 1);
}

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

}  // namespace

DType int8_code_type(const codegen::HostTarget& host) {
  return host.arch == codegen::HostArch::kAArch64 ? DType::kI8 : DType::kU8;
}

Int8Rows int8_rows(const ScaledDotProblem& problem, BufferArgument a, const Int8Units& cut,
                   bool split_eights, DType code_type, Lowered& lowered) {
  const int64_t unit = cut.unit, k = problem.k.value(), units = k / unit;
  Int8Rows rows;
  rows.codes = add_scratch(lowered, problem.rows * k);
  rows.scales = add_scratch(lowered, problem.rows * units * 4);
  rows.sums = add_scratch(lowered, problem.rows * units * 4);

  LaunchWriter writer("int8_rows");
  Builder& b = writer.builder;
  const ValueId from = writer.buffer("a", DType::kF32, a);
  const ValueId codes = writer.buffer("codes", code_type, rows.codes);
  const ValueId scales = writer.buffer("scales", DType::kF32, rows.scales);
  const ValueId sums = writer.buffer("sums", DType::kF32, rows.sums);

  const int64_t units_per_task =
      std::max<int64_t>(1, kPerTask / unit / cut.per_scale) * cut.per_scale;
  const int64_t tasks_per_row = (units + units_per_task - 1) / units_per_task;
  const ValueId row = b.div(b.task(), b.index(tasks_per_row));
  const ValueId first = b.mul(b.rem(b.task(), b.index(tasks_per_row)), b.index(units_per_task));
  const ValueId last = b.min(b.add(first, b.index(units_per_task)), b.index(units));
  const int width = static_cast<int>(unit);
  b.loop(first, last, b.index(cut.per_scale), {}, [&](ValueId u, auto) {
    const ValueId begin = b.add(b.mul(row, b.index(k)), b.mul(u, b.index(unit)));
    const Tile whole = b.load({from, begin}, {static_cast<int>(unit * cut.per_scale)});
    const Tile largest = b.reduce(Fn::kMax, b.unary(Fn::kAbs, whole), 0);
    const Tile scale = b.mul(largest, b.constant(DType::kF32, 1.0 / 127));
    const Tile empty = b.compare(Fn::kEqual, largest, b.constant(DType::kF32, 0));
    const Tile inverse =
        b.select(empty, b.constant(DType::kF32, 0), b.div(b.constant(DType::kF32, 127), largest));
    for (int64_t i = 0; i < cut.per_scale; ++i) {
      const ValueId at = b.add(begin, b.index(i * unit));
      const ValueId out = b.add(b.add(b.mul(row, b.index(units)), u), b.index(i));
      const Tile numbers = b.mul(b.load({from, at}, {width}), b.splat(inverse, {width}));
      const Tile rounder = b.constant(DType::kF32, kRounder, {width});
      const Tile rounded = b.add(numbers, rounder);
      Tile stored = b.bitcast(rounded, DType::kI32);
      if (code_type == DType::kU8) {
        stored = b.add(stored, b.integer_constant(DType::kI32, 128, {width}));
      }
      stored = b.cast(stored, code_type);
      b.store({codes, at}, split_eights ? evens_first(b, stored) : stored);
      b.store({scales, out}, scale);
      b.store({sums, out}, b.reduce(Fn::kAdd, b.sub(rounded, rounder), 0));
    }
    return std::vector<ValueId>{};
  });
  lowered.launches.push_back(
      writer.finish(problem.rows * tasks_per_row, std::min(k, kPerTask) * 2));
  return rows;
}

}  // namespace tenon::kernels
