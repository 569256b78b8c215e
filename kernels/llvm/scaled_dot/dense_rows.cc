#include "kernels/llvm/scaled_dot/dense_rows.h"

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/split_parts.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

constexpr int kLanes = kHostRowLanes;
constexpr int kSplitThreads = 256, kSplitElements = 8 * kSplitThreads;  // of a CTA

DType scale_type_of(const ir::Graph& graph, const ir::BlockScale& scale) {
  return scale.scale_type != DType::kUndefined ? scale.scale_type : graph.value(scale.scale).dtype;
}

// Dequantised elements at i64 element numbers, whatever their width.
Tile gather_numbers(codegen::Builder& b, ValueId buffer, DType dtype, Tile elements, Tile mask) {
  if (!is_packed(dtype)) {
    return dequantize_tile(b, b.gather(buffer, b.index(0), elements, mask), dtype);
  }
  const int bits = bit_width(dtype);
  const std::vector<int> shape = b.type(elements).shape;
  const auto number = [&](int64_t value) { return b.integer_constant(DType::kI64, value, shape); };
  const Tile byte = b.div(elements, number(8 / bits));
  const Tile shift = b.mul({b.rem(elements, number(8 / bits)), number(bits)});
  const Tile raw = b.gather(buffer, b.index(0), byte, mask);
  const Tile code = b.binary(Fn::kAnd, {b.binary(Fn::kShiftRight, raw, b.cast(shift, DType::kU8)),
                                        b.integer_constant(DType::kU8, (1 << bits) - 1, shape)});
  return dequantize_tile(b, code, dtype);
}

Tile gather_f32(codegen::Builder& b, ValueId buffer, DType dtype, Tile elements, Tile mask) {
  return b.cast(gather_numbers(b, buffer, dtype, elements, mask), DType::kF32);
}

Tile splat_index(codegen::Builder& b, ValueId index, int lanes) {
  return b.splat(b.from_index(index, DType::kI64), {lanes});
}

// Scales and zero points of rows, as parameters of a kernel.
class RowScales {
 public:
  RowScales(LaunchWriter& writer, const ir::Graph& graph, const ir::BlockScale& scale)
      : scale_(scale) {
    if (scale.scale != ir::kNoValue) {
      scale_type_ = scale_type_of(graph, scale);
      scales_ =
          writer.buffer("scales", storage_type(scale_type_), BufferArgument::value(scale.scale));
    }
    if (scale.zero_point != ir::kNoValue) {
      zero_type_ = graph.value(scale.zero_point).dtype;
      zeros_ =
          writer.buffer("zeros", storage_type(zero_type_), BufferArgument::value(scale.zero_point));
    }
  }

  // Scales of a row of k.
  Dim blocks_of(const Dim& k) const {
    return scale_.block > 0 ? ceil_div(k, scale_.block) : Dim(1);
  }

  // (value - zero point) * scale; a row has `blocks` of each.
  Tile apply(codegen::Builder& b, Tile value, ValueId row, ValueId blocks, Tile column,
             Tile mask) const {
    if (scales_ == kNone && zeros_ == kNone) return value;
    const int lanes = b.type(value).shape[0];
    Tile at = b.integer_constant(DType::kI64, 0, {lanes});
    if (scale_.per_channel) {
      at = splat_index(b, b.mul(row, blocks), lanes);
      if (scale_.block > 0) {
        at = b.add(at, b.div(column, b.integer_constant(DType::kI64, scale_.block, {lanes})));
      }
    }
    if (zeros_ != kNone) value = b.sub(value, gather_f32(b, zeros_, zero_type_, at, mask));
    if (scales_ != kNone) value = b.mul(value, gather_f32(b, scales_, scale_type_, at, mask));
    return value;
  }

 private:
  const ir::BlockScale& scale_;
  DType scale_type_ = DType::kUndefined, zero_type_ = DType::kUndefined;
  ValueId scales_ = kNone, zeros_ = kNone;
};

}  // namespace

Support supports_dense_rows(const ir::Graph& graph, const ScaledDotProblem& problem) {
  if (Support type = supports_type(problem.a_type); !type) return type;
  const bool scaled = problem.dot.scale_a.scale != ir::kNoValue;
  const bool integer = problem.y_type == DType::kI32 && is_byte(problem.a_type);
  if (!scaled && !integer && !has_float_rows(problem.a_type)) {
    return Support::no("integer activations without a scale");
  }
  if (scaled && problem.dot.scale_a.per_channel && problem.dot.a_k_first) {
    return Support::no("transposed activations with block scales are not supported");
  }
  if (scaled) {
    if (Support type = supports_type(scale_type_of(graph, problem.dot.scale_a)); !type) return type;
  }
  return Support::yes();
}

bool is_byte(DType dtype) { return dtype == DType::kU8 || dtype == DType::kI8; }

bool has_float_rows(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         is_small_float(dtype);
}

BufferArgument dense_rows(const ir::Graph& graph, const ScaledDotProblem& problem, Lowered& lowered,
                          int lanes) {
  const ir::ScaledDot& dot = problem.dot;
  const bool scaled = dot.scale_a.scale != ir::kNoValue;
  if (problem.a_type == DType::kF32 && !scaled && !dot.a_k_first) {
    return BufferArgument::value(dot.a);
  }
  const Dim rows = element_count(problem.a_batch) * problem.m;
  const BufferArgument dense = lowered.add_scratch(rows * problem.k * 4);
  LaunchWriter writer("dense_rows");
  codegen::Builder& b = writer.builder;
  const ValueId a = writer.buffer("a", storage_type(problem.a_type), BufferArgument::value(dot.a));
  const ValueId out = writer.buffer("rows", DType::kF32, dense);
  const RowScales scales(writer, graph, dot.scale_a);
  writer.declare(problem.m);
  writer.declare(problem.k);
  const Dim blocks = scales.blocks_of(problem.k);
  writer.declare(blocks);

  const ValueId row = b.task();
  const ValueId k = writer.index(problem.k), m = writer.index(problem.m);
  b.loop({b.index(0), k, b.index(lanes)}, {}, [&](ValueId first, auto) {
    const ValueId left = b.sub(k, first);
    const Tile column = b.add({splat_index(b, first, lanes), b.iota(DType::kI64, {lanes}, 0)});
    const Tile mask = b.compare(Fn::kLess, column, splat_index(b, k, lanes));
    Tile element = b.add(splat_index(b, b.mul(row, k), lanes), column);
    if (dot.a_k_first) {
      const ValueId base = b.add({b.mul({b.div(row, m), b.mul(k, m)}), b.rem(row, m)});
      element = b.add({splat_index(b, base, lanes), b.mul(column, splat_index(b, m, lanes))});
    }
    const Tile unscaled = gather_f32(b, a, problem.a_type, element, mask);
    const Tile value = scales.apply(b, unscaled, row, writer.index(blocks), column, mask);
    b.store({out, b.add(b.mul(row, k), first), {}, {left}}, value);
    return std::vector<ValueId>{};
  });
  lowered.launches.push_back(writer.finish(rows, problem.k));
  return dense;
}

Dim row_distance(const ScaledDotProblem& problem) {
  const bool aliases = problem.k.is_constant() && problem.k.value() % 1024 == 0;
  return aliases ? problem.k + kLanes : problem.k;
}

BufferArgument spread_rows(const ScaledDotProblem& problem, BufferArgument a, const Dim& several,
                           Lowered& lowered) {
  const int64_t k = problem.k.value(), distance = row_distance(problem).value();
  const BufferArgument target = lowered.add_scratch(several * problem.rows * distance * 4);
  LaunchWriter writer("spread_rows");
  codegen::Builder& b = writer.builder;
  const ValueId from = writer.buffer("a", DType::kF32, a);
  const ValueId to = writer.buffer("rows", DType::kF32, target);
  const ValueId source = b.mul({b.task(), b.index(k)});
  const ValueId goal = b.mul({b.task(), b.index(distance)});
  b.loop({b.index(0), b.index(k), b.index(kLanes)}, {}, [&](ValueId at, auto) {
    b.store({{to, b.add(goal, at)}, b.load({from, b.add(source, at)}, {kLanes})});
    return std::vector<ValueId>{};
  });
  lowered.launches.push_back(writer.finish(problem.rows * several, k / 8));
  return target;
}

BufferArgument interleave_rows(const ScaledDotProblem& problem, BufferArgument a, int group,
                               const Dim& wanted, Lowered& lowered) {
  const int64_t k = problem.k.value();
  const Dim groups = wanted * ceil_div(problem.rows, group);
  const BufferArgument target = lowered.add_scratch(groups * (group * k * 4));
  LaunchWriter writer("interleave_rows");
  codegen::Builder& b = writer.builder;
  const ValueId from = writer.buffer("a", DType::kF32, a);
  const ValueId to = writer.buffer("rows", DType::kF32, target);
  writer.declare(problem.rows);
  const ValueId first = b.mul({b.task(), b.index(group)});
  const ValueId last = b.sub({writer.index(problem.rows), b.index(1)});
  b.loop({b.index(0), b.index(k), b.index(group)}, {}, [&](ValueId at, auto) {
    const ValueId goal = b.add({b.mul(first, b.index(k)), b.mul(at, b.index(group))});
    for (int i = 0; i < group; ++i) {
      // Nobody reads rows past the last one.
      const ValueId row = b.min(b.add(first, b.index(i)), last);
      const Tile piece = b.load({from, b.add(b.mul(row, b.index(k)), at)}, {group});
      b.store({to, b.add(goal, b.index(i * group))}, piece);
    }
    return std::vector<ValueId>{};
  });
  lowered.launches.push_back(writer.finish(groups, group * k / 8));
  return target;
}

BufferArgument room_for_terms(const ScaledDotProblem& problem, int terms, Lowered& lowered) {
  return lowered.add_scratch(problem.rows * problem.k * Dim(terms * 2));
}

Launch split_rows(const ScaledDotProblem& problem, int terms, BufferArgument room,
                  const Dim& wanted) {
  const Dim elements = problem.rows * problem.k;
  LaunchWriter writer("split_rows");
  codegen::Builder& b = writer.builder;
  const ValueId x = writer.buffer("x", problem.a_type, BufferArgument::value(problem.dot.a));
  const ValueId out = writer.buffer("terms", DType::kBF16, room);
  writer.declare(elements);
  const ValueId first = b.mul({b.task(), b.index(kSplitElements)});
  const ValueId left = b.sub(writer.index(elements), first);
  const Tile numbers = b.load({x, first, {}, {left}}, {kSplitElements});
  ValueId matrix = b.index(0);
  for (const Tile term : split_bf16(b, numbers, terms)) {
    b.store({out, b.add(matrix, first), {}, {left}}, term);
    matrix = b.add(matrix, writer.index(elements));
  }
  Launch launch = writer.finish(ceil_div(elements, Dim(kSplitElements)) * wanted, kSplitElements);
  launch.threads = kSplitThreads;
  return launch;
}

}  // namespace tenon::kernels
