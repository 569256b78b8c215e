#include "tests/codegen/gpu_samples.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>

#include "base/convert.h"
#include "codegen/tile/builder.h"

namespace tenon::codegen {

namespace {

constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;

std::string label(std::string_view what, std::initializer_list<int> sizes, DType dtype,
                  int threads) {
  std::string out(what);
  for (int size : sizes) out += "_" + std::to_string(size);
  return out + "_" + std::string(name(dtype)) + "_t" + std::to_string(threads);
}

double tolerance_of(DType dtype) {
  return dtype == kF16 ? 2e-3 : dtype == kBF16 ? 1.6e-2 : dtype == kF32 ? 2e-6 : 0;
}

Sample pointwise(DType dtype, int tile, int threads) {
  Builder b("pointwise");
  ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype), out = b.buffer("out", dtype);
  ValueId n = b.index_parameter("n");
  ValueId at = b.mul(b.task(), b.index(tile)), left = b.sub(n, at);
  ValueId a = b.load({x, at, {}, {left}}, {tile}), c = b.load({y, at, {}, {left}}, {tile});
  ValueId gelu = b.mul(a, b.unary(Fn::kErf, b.mul(c, b.constant(dtype, 0.5))));
  b.store({out, at, {}, {left}}, b.add(gelu, b.unary(Fn::kExp, c)));
  int64_t size = int64_t{tile} * 3 + 101;
  return {label("pointwise", {tile}, dtype, threads),
          b.finish(),
          threads,
          5,
          {{dtype, size}, {dtype, size}, {dtype, size, 0}},
          {size},
          tolerance_of(dtype)};
}

// One row a task, held in registers: one pass over memory.
Sample softmax(DType dtype, int columns, int tile, int threads) {
  Builder b("softmax");
  ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype), n = b.index_parameter("n");
  ValueId at = b.mul(b.task(), n);
  ValueId row = b.cast(b.load({x, at, {}, {n}}, {tile}, -INFINITY), kF32);
  ValueId high = b.splat(b.reduce(Fn::kMax, row, 0), {tile});
  ValueId power = b.unary(Fn::kExp, b.sub(row, high));
  ValueId sum = b.splat(b.reduce(Fn::kAdd, power, 0), {tile});
  b.store({y, at, {}, {n}}, b.cast(b.binary(Fn::kDiv, power, sum), dtype));
  int64_t size = int64_t{columns} * 7;
  return {label("softmax", {columns, tile}, dtype, threads),
          b.finish(),
          threads,
          7,
          {{dtype, size}, {dtype, size, 0}},
          {columns},
          tolerance_of(dtype)};
}

// Several rows a task: reductions along an axis of a rank-2 tile.
Sample layer_norm(DType dtype, int rows, int columns, int threads) {
  Builder b("layer_norm");
  ValueId x = b.buffer("x", dtype), scale = b.buffer("scale", dtype), y = b.buffer("y", dtype);
  ValueId m = b.index_parameter("m");
  ValueId first = b.mul(b.task(), b.index(rows)), at = b.mul(first, b.index(columns));
  ValueId left = b.sub(m, first);
  std::vector<int> shape{rows, columns};
  ValueId in = b.cast(b.load({x, at, {}, {left, kNone}}, shape), kF32);
  auto mean_of = [&](ValueId v) {
    ValueId sum = b.mul(b.reduce(Fn::kAdd, v, 1), b.constant(kF32, 1.0 / columns));
    return b.broadcast(b.reshape(sum, {rows, 1}), shape);
  };
  ValueId centred = b.sub(in, mean_of(in));
  ValueId variance = mean_of(b.mul(centred, centred));
  ValueId rsqrt = b.unary(Fn::kRsqrt, b.add(variance, b.constant(kF32, 1e-5)));
  ValueId weight = b.broadcast(b.cast(b.load({scale, b.index(0)}, {columns}), kF32), shape);
  b.store({y, at, {}, {left, kNone}}, b.cast(b.mul(b.mul(centred, rsqrt), weight), dtype));
  int total = 2 * rows + 1;
  return {
      label("layer_norm", {rows, columns}, dtype, threads),
      b.finish(),
      threads,
      3,
      {{dtype, int64_t{total} * columns}, {dtype, columns}, {dtype, int64_t{total} * columns, 0}},
      {total},
      tolerance_of(dtype)};
}

Sample transpose(DType dtype, int rows, int columns, int threads) {
  Builder b("transpose");
  ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype);
  ValueId m = b.index_parameter("m"), n = b.index_parameter("n");
  ValueId tile = b.load({x, b.index(0), {n, b.index(1)}, {m, n}}, {rows, columns});
  b.store({y, b.index(0), {m, b.index(1)}, {n, m}}, b.transpose(tile));
  int64_t used_rows = std::max(1, rows - 3), used_columns = std::max(1, columns - 1);
  return {label("transpose", {rows, columns}, dtype, threads),
          b.finish(),
          threads,
          1,
          {{dtype, used_rows * used_columns, 100}, {dtype, used_rows * used_columns, 0}},
          {used_rows, used_columns}};
}

Sample gather(DType dtype, int count, int threads) {
  Builder b("gather");
  ValueId x = b.buffer("x", dtype), at = b.buffer("at", DType::kI32), y = b.buffer("y", dtype);
  ValueId n = b.index_parameter("n");
  ValueId indices = b.load({at, b.index(0), {}, {n}}, {count});
  ValueId mask = b.less(indices, b.integer_constant(DType::kI32, 90, {count}));
  ValueId got = b.gather(x, b.index(3), indices, mask, 7);
  b.store({y, b.index(0), {}, {n}}, got);
  b.scatter(y, n, b.iota(DType::kI64, {count}, 0), got, mask);
  return {label("gather", {count}, dtype, threads),
          b.finish(),
          threads,
          1,
          {{dtype, 103, 100}, {DType::kI32, count, 100}, {dtype, 2 * count, 0}},
          {count - 1}};
}

struct SmallFloat {
  Fn dequantize, quantize;
  const char* name;
};
constexpr SmallFloat kSmallFloats[] = {
    {Fn::kDequantizeF8E4M3FN, Fn::kQuantizeF8E4M3FN, "f8e4m3fn"},
    {Fn::kDequantizeF8E4M3FNUZ, Fn::kQuantizeF8E4M3FNUZ, "f8e4m3fnuz"},
    {Fn::kDequantizeF8E5M2, Fn::kQuantizeF8E5M2, "f8e5m2"},
    {Fn::kDequantizeF8E5M2FNUZ, Fn::kQuantizeF8E5M2FNUZ, "f8e5m2fnuz"},
    {Fn::kDequantizeF8E8M0, Fn::kQuantizeF8E8M0, "f8e8m0"},
    {Fn::kDequantizeF4E2M1, Fn::kQuantizeF4E2M1, "f4e2m1"},
};

Sample dequantize(const SmallFloat& format, int count, int threads) {
  Builder b("dequantize");
  ValueId x = b.buffer("x", DType::kU8), y = b.buffer("y", kF32), z = b.buffer("z", DType::kU8);
  ValueId codes = b.load({x, b.index(0)}, {count});
  if (format.dequantize == Fn::kDequantizeF4E2M1) {
    codes = b.binary(Fn::kAnd, codes, b.integer_constant(DType::kU8, 15, {count}));
  }
  ValueId numbers = b.unary(format.dequantize, codes);
  b.store({y, b.index(0)}, numbers);
  ValueId scaled = b.mul(numbers, b.constant(kF32, 1.37));
  b.store({z, b.index(0)}, b.quantize(format.quantize, scaled, /*saturate=*/true));
  return {std::string("dequantize_") + format.name,
          b.finish(),
          threads,
          1,
          {{DType::kU8, count, 256}, {kF32, count, 0}, {DType::kU8, count, 0}},
          {}};
}

// Two 4-bit codes a byte through a table, as block-quantised weights are read.
Sample table(DType dtype, int count, int threads) {
  Builder b("table");
  ValueId x = b.buffer("x", DType::kU8), y = b.buffer("y", dtype);
  std::vector<double> entries;
  for (int i = 0; i < 16; ++i) entries.push_back(i < 8 ? i : 8 - i);
  ValueId codes = b.load({x, b.index(0)}, {count});
  ValueId values = b.table(dtype, entries);
  ValueId high = b.binary(Fn::kShiftRight, codes, b.integer_constant(DType::kU8, 4, {count}));
  b.store({y, b.index(0)}, b.lookup(values, codes));
  b.store({y, b.index(count)}, b.lookup(values, high));
  return {label("table", {count}, dtype, threads),           b.finish(), threads, 1,
          {{DType::kU8, count, 256}, {dtype, 2 * count, 0}}, {}};
}

// c = a * b over K in steps of `k`, edges masked, with a bias.
Sample matmul(DType dtype, int m, int n, int k, int threads, bool b_transposed) {
  Builder b("matmul");
  ValueId a = b.buffer("a", dtype), w = b.buffer("b", dtype), bias = b.buffer("bias", kF32);
  ValueId c = b.buffer("c", kF32);
  ValueId M = b.index_parameter("m"), N = b.index_parameter("n"), K = b.index_parameter("k");
  ValueId one = b.index(1), zero = b.index(0);
  ValueId sum = b.loop(zero, K, b.index(k), {b.constant(kF32, 0, {m, n})},
                       [&](ValueId at, std::span<const ValueId> carried) {
                         ValueId left = b.sub(K, at);
                         ValueId x = b.load({a, at, {K, one}, {M, left}}, {m, k});
                         ValueId y = b_transposed
                                         ? b.transpose(b.load({w, at, {K, one}, {N, left}}, {n, k}))
                                         : b.load({w, b.mul(at, N), {N, one}, {left, N}}, {k, n});
                         return std::vector{b.dot(carried[0], x, y)};
                       })[0];
  ValueId row = b.broadcast(b.load({bias, zero, {}, {N}}, {n}), {m, n});
  b.store({c, zero, {N, one}, {M, N}}, b.add(sum, row));
  int64_t rows = std::max(1, m - 1), columns = n > 8 ? n - 2 : n, depth = 2 * k + (k > 8 ? 4 : 1);
  return {
      label(b_transposed ? "matmul_nt" : "matmul", {m, n, k}, dtype, threads),
      b.finish(),
      threads,
      1,
      {{dtype, rows * depth}, {dtype, columns * depth}, {kF32, columns}, {kF32, rows * columns, 0}},
      {rows, columns, depth},
      dtype == kF32 ? 0 : 1e-5};
}

// Operands that arrive transposed and in parts, as packed weights do.
Sample matmul_parts(DType dtype, int m, int n, int k, int threads, bool b_transposed) {
  Builder b("matmul_parts");
  ValueId a = b.buffer("a", dtype), w = b.buffer("b", dtype), c = b.buffer("c", kF32);
  ValueId zero = b.index(0);
  ValueId left = b.transpose(b.load({a, zero}, {k, m}));
  std::vector<ValueId> parts;
  for (int i = 0; i < 2; ++i) {
    parts.push_back(b.load({w, b.index(i * k / 2 * n)},
                           b_transposed ? std::vector{n, k / 2} : std::vector{k / 2, n}));
  }
  ValueId right = b.concat(parts, b_transposed ? 1 : 0);
  if (b_transposed) right = b.transpose(right);
  ValueId sums = b.dot(b.constant(kF32, 1, {m, n}), left, right);
  ValueId twice = b.dot(sums, b.add(left, left), right);
  b.store({c, zero}, twice);
  return {label(b_transposed ? "matmul_parts_nt" : "matmul_parts", {m, n, k}, dtype, threads),
          b.finish(),
          threads,
          1,
          {{dtype, int64_t{m} * k}, {dtype, int64_t{n} * k}, {kF32, int64_t{m} * n, 0}},
          {},
          1e-5};
}

Sample matmul_i8(int m, int n, int k, int threads) {
  Builder b("matmul_i8");
  ValueId a = b.buffer("a", DType::kU8), w = b.buffer("b", DType::kI8);
  ValueId c = b.buffer("c", DType::kI32);
  ValueId zero = b.index(0);
  ValueId sum = b.integer_constant(DType::kI32, 3, {m, n});
  b.store({c, zero}, b.dot_i8(sum, b.load({a, zero}, {m, k}), b.load({w, zero}, {n, k})));
  return {label("matmul_i8", {m, n, k}, DType::kU8, threads),
          b.finish(),
          threads,
          1,
          {{DType::kU8, int64_t{m} * k, 256},
           {DType::kI8, int64_t{n} * k, 127},
           {DType::kI32, int64_t{m} * n, 0}},
          {}};
}

// Softmax(q k') v with running maxima and sums, as flash attention keeps them.
Sample attention(DType dtype, int m, int n, int d, int threads) {
  Builder b("attention");
  ValueId q = b.buffer("q", dtype), k = b.buffer("k", dtype), v = b.buffer("v", dtype);
  ValueId o = b.buffer("o", dtype), length = b.index_parameter("length");
  ValueId zero = b.index(0);
  std::vector<int> tile{m, n}, out{m, d};
  ValueId queries = b.load({q, zero}, {m, d});
  auto column = [&](ValueId x, std::vector<int> shape) {
    return b.broadcast(b.reshape(x, {m, 1}), std::move(shape));
  };
  std::vector<ValueId> initial{b.constant(kF32, -INFINITY, {m}), b.constant(kF32, 0, {m}),
                               b.constant(kF32, 0, out)};
  std::vector<ValueId> end =
      b.loop(zero, length, b.index(n), initial, [&](ValueId at, std::span<const ValueId> carried) {
        ValueId left = b.sub(length, at), offset = b.mul(at, b.index(d));
        ValueId keys = b.load({k, offset, {}, {left, kNone}}, {n, d});
        ValueId values = b.load({v, offset, {}, {left, kNone}}, {n, d});
        ValueId scores = b.dot(b.constant(kF32, 0, tile), queries, b.transpose(keys));
        ValueId position = b.iota(DType::kI32, tile, 1);
        ValueId present = b.less(position, b.splat(b.from_index(left, DType::kI32), tile));
        scores = b.select(present, b.mul(scores, b.constant(kF32, 0.125)),
                          b.constant(kF32, -INFINITY, tile));
        ValueId high = b.max(carried[0], b.reduce(Fn::kMax, scores, 1));
        ValueId power = b.unary(Fn::kExp, b.sub(scores, column(high, tile)));
        ValueId shrink = b.unary(Fn::kExp, b.sub(carried[0], high));
        ValueId sum = b.add(b.mul(carried[1], shrink), b.reduce(Fn::kAdd, power, 1));
        ValueId scaled = b.mul(carried[2], column(shrink, out));
        return std::vector{high, sum, b.dot(scaled, b.cast(power, dtype), values)};
      });
  b.store({o, zero}, b.cast(b.binary(Fn::kDiv, end[2], column(end[1], out)), dtype));
  int64_t rows = 2 * n + 5;
  return {
      label("attention", {m, n, d}, dtype, threads),
      b.finish(),
      threads,
      1,
      {{dtype, int64_t{m} * d}, {dtype, rows * d}, {dtype, rows * d}, {dtype, int64_t{m} * d, 0}},
      {rows},
      dtype == kBF16 ? 2e-2 : 4e-3};
}

// Scratch that other threads read, inside a loop.
Sample scratch(int count, int threads) {
  Builder b("scratch");
  ValueId x = b.buffer("x", kF32), y = b.buffer("y", kF32), zero = b.index(0);
  ValueId room = b.alloc(kF32, count + 4);
  b.store({room, zero}, b.load({x, zero}, {count}));
  b.loop(zero, b.index(5), b.index(1), {}, [&](ValueId, std::span<const ValueId>) {
    ValueId backwards = b.load({room, b.index(count - 1), {b.index(-1)}}, {count});
    ValueId shifted = b.load({room, b.index(0), {}, {b.index(count - 1)}}, {count});
    b.store({room, zero}, b.add(backwards, b.mul(shifted, b.constant(kF32, 0.5))));
    return std::vector<ValueId>{};
  });
  b.store({y, zero}, b.load({room, zero}, {count}));
  return {label("scratch", {count}, kF32, threads), b.finish(), threads, 1,
          {{kF32, count}, {kF32, count, 0}},        {}};
}

}  // namespace

std::vector<Sample> representative_samples() {
  std::vector<Sample> out;
  for (DType dtype : {kF32, kF16, kBF16}) {
    out.push_back(pointwise(dtype, 1024, 128));
    out.push_back(softmax(dtype, 1000, 1024, 128));
    out.push_back(layer_norm(dtype, 4, 256, 128));
    out.push_back(transpose(dtype, 32, 32, 128));
    out.push_back(gather(dtype, 512, 128));
    out.push_back(table(dtype, 512, 128));
  }
  for (const SmallFloat& format : kSmallFloats) out.push_back(dequantize(format, 1024, 128));
  for (DType dtype : {kF16, kBF16}) {
    out.push_back(matmul(dtype, 64, 64, 32, 128, false));
    out.push_back(matmul(dtype, 128, 64, 32, 256, true));
    out.push_back(attention(dtype, 64, 32, 64, 128));
  }
  out.push_back(matmul(kF32, 32, 32, 16, 128, false));
  out.push_back(matmul_i8(16, 16, 32, 64));
  out.push_back(scratch(300, 128));
  return out;
}

namespace {

const std::vector<std::vector<int>> kShapes = {
    {1},    {5},     {32},     {100},   {128},   {1000},    {4096},   {1, 7},   {7, 1},
    {4, 4}, {3, 37}, {16, 16}, {8, 64}, {64, 8}, {2, 2048}, {33, 48}, {128, 24}};

struct Unary {
  const char* name;
  std::vector<int> result;
  std::function<ValueId(Builder&, ValueId)> make;
};

// out = make(x) for one whole tile.
Sample tile_sample(const std::string& what, DType dtype, DType to, const std::vector<int>& shape,
                   int threads, double range, double tolerance,
                   const std::function<ValueId(Builder&, ValueId)>& make) {
  Builder b("op");
  ValueId x = b.buffer("x", dtype), y = b.buffer("y", to), zero = b.index(0);
  ValueId in = b.load({x, zero}, shape);
  ValueId out = make(b, in);
  int64_t elements = b.type(out).elements();
  b.store({y, zero}, out);
  Type type = Type::tile(dtype, shape);
  std::string name = what + "_" + std::string(tenon::name(dtype)) + "_t" + std::to_string(threads);
  for (int size : shape) name += "_" + std::to_string(size);
  return {name, b.finish(), threads, 1, {{dtype, type.elements(), range}, {to, elements, 0}},
          {},   tolerance};
}

void add_reductions(std::vector<Sample>& out) {
  struct Row {
    Fn fn;
    DType dtype;
    double range, tolerance;
  };
  constexpr Row kRows[] = {{Fn::kAdd, kF32, 4, 1e-4},        {Fn::kMax, kF32, 4, 0},
                           {Fn::kMin, DType::kI32, 1000, 0}, {Fn::kMul, DType::kI64, 3, 0},
                           {Fn::kAdd, kF16, 1, 4e-3},        {Fn::kAnd, DType::kBool, 1, 0},
                           {Fn::kMax, DType::kU8, 200, 0},   {Fn::kAdd, DType::kF64, 4, 1e-12}};
  for (const Row& row : kRows) {
    for (const auto& shape : kShapes) {
      for (int axis = 0; axis < static_cast<int>(shape.size()); ++axis) {
        for (int threads : {32, 128}) {
          out.push_back(tile_sample(
              "reduce" + std::to_string(axis), row.dtype, row.dtype, shape, threads, row.range,
              row.tolerance, [&](Builder& b, ValueId x) { return b.reduce(row.fn, x, axis); }));
        }
      }
    }
  }
}

void add_shapes(std::vector<Sample>& out) {
  for (DType dtype : {kF32, DType::kU8, DType::kI64, kF16, DType::kBool}) {
    for (const auto& shape : kShapes) {
      for (int threads : {64, 256}) {
        if (dtype != kF32 && threads == 256) continue;
        auto add = [&](const char* what, const std::function<ValueId(Builder&, ValueId)>& make) {
          out.push_back(tile_sample(what, dtype, dtype, shape, threads, 100, 0, make));
        };
        int last = shape.back(), elements = shape.size() == 2 ? shape[0] * last : last;
        add("copy", [&](Builder&, ValueId x) { return x; });
        if (elements * 3 <= kMaxTileElements && shape.size() == 1) {
          add("broadcast", [&](Builder& b, ValueId x) { return b.broadcast(x, {3, last}); });
          add("column", [&](Builder& b, ValueId x) {
            return b.broadcast(b.reshape(x, {last, 1}), {last, 3});
          });
        }
        if (shape.size() == 2) {
          add("transpose", [&](Builder& b, ValueId x) { return b.transpose(x); });
          add("flat", [&](Builder& b, ValueId x) { return b.reshape(x, {elements}); });
          add("slice", [&](Builder& b, ValueId x) {
            int rows = (shape[0] + 1) / 2, columns = (last + 1) / 2;
            return b.slice(x, {shape[0] - rows, last - columns}, {rows, columns});
          });
        } else {
          add("slice",
              [&](Builder& b, ValueId x) { return b.slice(x, {last / 2}, {last - last / 2}); });
        }
        for (int axis = 0; axis < static_cast<int>(shape.size()); ++axis) {
          if (elements * 2 > kMaxTileElements) continue;
          add("concat", [&](Builder& b, ValueId x) { return b.concat(std::vector{x, x}, axis); });
        }
      }
    }
  }
}

// Built on the GPU's own 2^x and 1 / x, which are not exact to the last bit.
constexpr std::array kByInstruction = {Fn::kExp, Fn::kExp2, Fn::kReciprocal, Fn::kRsqrt, Fn::kTanh};

void add_arithmetic(std::vector<Sample>& out) {
  const std::vector<int> shape{100};
  auto map = [&](const std::string& what, DType dtype, DType to, double range, double tolerance,
                 const std::function<ValueId(Builder&, ValueId)>& make) {
    out.push_back(tile_sample(what, dtype, to, shape, 64, range, tolerance, make));
  };
  constexpr DType kAll[] = {DType::kBool, DType::kI8,  DType::kU8,  DType::kI16, DType::kU16,
                            DType::kI32,  DType::kU32, DType::kI64, DType::kU64, kF16,
                            kBF16,        kF32,        DType::kF64};
  for (DType from : kAll) {
    for (DType to : kAll) {
      std::string what = "cast_to_" + std::string(name(to));
      map(what, from, to, 1000, 0, [&](Builder& b, ValueId x) { return b.cast(x, to); });
    }
    if (from == DType::kBool) continue;
    for (Fn fn : {Fn::kAdd, Fn::kSub, Fn::kMul, Fn::kDiv, Fn::kRem, Fn::kMod, Fn::kMin, Fn::kMax}) {
      map(std::string(name(fn)), from, from, 100, 0, [&](Builder& b, ValueId x) {
        return b.binary(fn, x, b.add(b.mul(x, x), b.constant(from, 3, shape)));
      });
      if (!is_integer(from)) continue;
      map(std::string(name(fn)) + "_mixed", from, from, 100, 0, [&](Builder& b, ValueId x) {
        return b.binary(fn, b.mul(x, x), b.sub(x, b.constant(from, 3, shape)));
      });
    }
    if (is_integer(from)) {
      map("pow", from, from, 9, 0, [&](Builder& b, ValueId x) {
        return b.binary(Fn::kPow, b.sub(x, b.constant(from, 3, shape)),
                        b.sub(b.mul(x, x), b.constant(from, 5, shape)));
      });
      for (Fn fn : {Fn::kAnd, Fn::kOr, Fn::kXor, Fn::kShiftLeft, Fn::kShiftRight}) {
        map(std::string(name(fn)), from, from, 100, 0,
            [&](Builder& b, ValueId x) { return b.binary(fn, b.mul(x, x), x); });
      }
    }
  }
  for (DType dtype : {kF16, kF32}) {
    for (int fn = static_cast<int>(Fn::kNeg); fn <= static_cast<int>(Fn::kSign); ++fn) {
      auto unary = static_cast<Fn>(fn);
      if (unary == Fn::kNot) continue;
      bool answers = unary == Fn::kIsNan || unary == Fn::kIsInf;
      auto make = [&](Builder& b, ValueId x) { return b.unary(unary, x); };
      map(std::string(name(unary)), dtype, answers ? DType::kBool : dtype, 4, 0, make);
      if (std::ranges::find(kByInstruction, unary) == kByInstruction.end()) continue;
      out.back().ulps = dtype == kF32 ? 4 : 1;
      double far =
          unary == Fn::kReciprocal || unary == Fn::kRsqrt ? dtype == kF32 ? 3.4e38 : 65000 : 200;
      map(std::string(name(unary)) + "_far", dtype, dtype, far, 0, make);
      out.back().ulps = dtype == kF32 ? 4 : 1;
    }
    map("pow", dtype, dtype, 4, 0,
        [&](Builder& b, ValueId x) { return b.binary(Fn::kPow, b.unary(Fn::kAbs, x), x); });
    map("atan2", dtype, dtype, 4, 0,
        [&](Builder& b, ValueId x) { return b.binary(Fn::kAtan2, x, b.mul(x, x)); });
    map("rem_far", dtype, dtype, 60000, 0, [&](Builder& b, ValueId x) {
      return b.binary(Fn::kRem, x, b.constant(dtype, 0.37, shape));
    });
  }
  for (Fn fn : {Fn::kNeg, Fn::kAbs, Fn::kSqrt, Fn::kFloor, Fn::kCeil, Fn::kTrunc, Fn::kRound}) {
    map(std::string(name(fn)), DType::kF64, DType::kF64, 4, 0,
        [&](Builder& b, ValueId x) { return b.unary(fn, x); });
  }
}

// Loads and stores of every alignment and edge.
void add_accesses(std::vector<Sample>& out) {
  for (DType dtype : {kF32, kF16, DType::kU8, DType::kI64, DType::kBool}) {
    for (int threads : {32, 128}) {
      for (int offset : {0, 1, 4, 8}) {
        for (int columns : {64, 60, 61}) {
          for (int rows_left : {-1, 3, 16, 40}) {
            Builder b("access");
            ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype);
            ValueId at = b.index_parameter("at"), n = b.index_parameter("n");
            ValueId m = b.index_parameter("m"), step = b.index_parameter("step");
            ValueId tile = b.load({x, at, {n, step}, {m, n}}, {16, 64}, 1);
            b.store({y, at, {n, step}, {m, n}}, tile);
            b.store({y, b.index(2048)}, tile);
            std::string name = "access_" + std::string(tenon::name(dtype)) + "_" +
                               std::to_string(offset) + "_" + std::to_string(columns) + "_" +
                               std::to_string(rows_left) + "_t" + std::to_string(threads);
            out.push_back({name,
                           b.finish(),
                           threads,
                           1,
                           {{dtype, 2048, 100}, {dtype, 4096, 0}},
                           {offset, columns, rows_left, 1}});
          }
        }
      }
    }
  }
}

// Small ones: the host unrolls products altogether.
void add_products(std::vector<Sample>& out) {
  constexpr std::array<int, 3> kProducts[] = {{16, 8, 16},  {16, 16, 16}, {1, 8, 32},  {5, 3, 7},
                                              {64, 32, 16}, {32, 24, 40}, {48, 40, 16}};
  for (int threads : {32, 64, 128, 256}) {
    DType dtype = threads % 128 == 0 ? kF16 : kBF16;
    for (auto [m, n, k] : kProducts) {
      out.push_back(matmul(dtype, m, n, k, threads, false));
      out.push_back(matmul(dtype, m, n, k, threads, true));
      if (k % 2 != 0) continue;
      out.push_back(matmul_parts(dtype, m, n, k, threads, false));
      out.push_back(matmul_parts(dtype, m, n, k, threads, true));
    }
    out.push_back(attention(dtype, 16, 32, 64, threads));
    out.push_back(attention(dtype, 64, 32, 16, threads));
    out.push_back(attention(dtype, 32, 40, 24, threads));
    out.push_back(attention(dtype, 3, 16, 8, threads));
  }
}

}  // namespace

std::vector<Sample> operation_samples() {
  std::vector<Sample> out;
  add_reductions(out);
  add_shapes(out);
  add_arithmetic(out);
  add_accesses(out);
  add_products(out);
  for (int threads : {32, 128}) {
    for (auto [m, n, k] : {std::array{16, 8, 16}, {5, 3, 7}, {64, 64, 16}}) {
      out.push_back(matmul(kF32, m, n, k, threads, false));
      out.push_back(matmul(kF32, m, n, k, threads, true));
      out.push_back(matmul_i8(m, n, (k + 3) / 4 * 4, threads));
    }
    for (int count : {1, 37, 200, 1000}) {
      out.push_back(scratch(std::max(2, count), threads));
      for (DType dtype : {kF32, kF16, DType::kI64}) {
        out.push_back(gather(dtype, count, threads));
        out.push_back(table(dtype, count, threads));
      }
    }
    for (int columns : {5, 100, 512, 3000}) {
      out.push_back(softmax(kF32, columns, 4096, threads));
      out.push_back(pointwise(kF32, columns, threads));
      out.push_back(pointwise(DType::kF16, columns, threads));
    }
    for (auto [m, n] : {std::array{1, 64}, {3, 100}, {16, 768}, {8, 40}}) {
      out.push_back(layer_norm(kF32, m, n, threads));
    }
  }
  return out;
}

std::vector<std::vector<uint64_t>> sample_contents(const Sample& sample) {
  std::mt19937_64 random(7);
  std::vector<std::vector<uint64_t>> out;
  for (const SampleBuffer& buffer : sample.buffers) {
    size_t bytes = storage_bytes(buffer.dtype, buffer.elements);
    std::vector<uint64_t> words(bytes / 8 + 1);
    for (int64_t i = 0; i < buffer.elements && buffer.range > 0; ++i) {
      double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      double value = is_floating(buffer.dtype)      ? (2 * unit - 1) * buffer.range
                     : buffer.dtype == DType::kBool ? std::round(unit)
                                                    : std::floor(unit * buffer.range);
      store_element(buffer.dtype, words.data(), i, value);
    }
    out.push_back(std::move(words));
  }
  return out;
}

}  // namespace tenon::codegen
