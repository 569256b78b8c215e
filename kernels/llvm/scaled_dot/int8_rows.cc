#include "kernels/llvm/scaled_dot/int8_rows.h"

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::ValueId;

constexpr int64_t kPerTask = 1024;  // elements of a row that one task takes

BufferArgument add_scratch(Lowered& lowered, const Dim& bytes) {
  lowered.scratch.push_back(bytes);
  return BufferArgument::scratch(static_cast<int32_t>(lowered.scratch.size()) - 1);
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
    // Codes of part of a unit; returns their sum.
    const auto write = [&](const codegen::Access& source, const codegen::Access& target,
                           std::vector<int> shape) {
      const Tile code = b.unary(Fn::kRound, b.mul(b.load(source, shape), b.splat(inverse, shape)));
      Tile stored = b.cast(code, DType::kI32);
      if (code_type == DType::kU8) {
        stored = b.add(stored, b.integer_constant(DType::kI32, 128, shape));
      }
      b.store(target, b.cast(stored, code_type));
      Tile sum = b.reduce(Fn::kAdd, code, 0);
      return shape.size() == 2 ? b.reduce(Fn::kAdd, sum, 0) : sum;
    };
    for (int64_t i = 0; i < cut.per_scale; ++i) {
      const ValueId at = b.add(begin, b.index(i * unit));
      const ValueId out = b.add(b.add(b.mul(row, b.index(units)), u), b.index(i));
      b.store({scales, out}, scale);
      Tile total;
      if (split_eights) {
        const std::vector<int> half = {width / 8, 4};
        const std::vector<ValueId> spread = {b.index(8), b.index(2)};
        const std::vector<ValueId> packed = {b.index(8), b.index(1)};
        const Tile even = write({from, at, spread}, {codes, at, packed}, half);
        const Tile odd = write({from, b.add(at, b.index(1)), spread},
                               {codes, b.add(at, b.index(4)), packed}, half);
        total = b.add(even, odd);
      } else {
        total = write({from, at}, {codes, at}, {width});
      }
      b.store({sums, out}, total);
    }
    return std::vector<ValueId>{};
  });
  lowered.launches.push_back(
      writer.finish(problem.rows * tasks_per_row, std::min(k, kPerTask) * 2));
  return rows;
}

}  // namespace tenon::kernels
