// Kernels with pipelines, as large products are written.
#include <algorithm>
#include <bit>

#include "codegen/tile/builder.h"
#include "tests/codegen/gpu_samples.h"

namespace tenon::codegen {

namespace {

constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kU32 = DType::kU32;
constexpr int kStep = 64;  // along k

int log2_of(int n) { return std::countr_zero(static_cast<unsigned>(n)); }

// Weights e2m1 with scales e4m3 for 16 of them. A step of `rows` weight rows is one run of words:
//   codes [rows/64][warp 4][g 8][t 4][q 4], a word holds 8 codes of k16 slice q: rows g and g + 8
//   of the warp's 16, k = 2t, 2t + 1, 2t + 8, 2t + 9
//   scales [rows/64][warp 4][g 8][row half 2], a word holds those of the four slices
struct PackedWeights {
  Builder& b;
  int rows;

  int words() const { return rows * 9; }

  ValueId constant(uint32_t value, std::vector<int> shape) const {
    return b.integer_constant(kU32, value, std::move(shape));
  }

  // Two codes of a word as two f16, times 2^-14: J is the pair's place in the operand.
  ValueId codes(ValueId words, int J) const {
    std::vector<int> shape{rows * 2, 4};
    auto left = [&](int by) { return b.binary(Fn::kShiftLeft, words, constant(by, shape)); };
    auto right = [&](int by) { return b.binary(Fn::kShiftRight, words, constant(by, shape)); };
    auto kept = [&](ValueId x, uint32_t mask) {
      return b.binary(Fn::kAnd, x, constant(mask, shape));
    };
    ValueId out = kNone;
    switch (J) {
      case 0:
        out = kept(words, 0x8E008E00);
        break;
      case 1:
        out = kept(left(8), 0x8E008E00);
        break;
      case 2:
        out = b.binary(Fn::kOr, kept(left(1), 0x82008200), kept(right(2), 0x0C000C00));
        break;
      default:
        out = b.binary(Fn::kOr, kept(left(9), 0x82008200), kept(left(6), 0x0C000C00));
    }
    return b.bitcast(out, kF16);
  }

  // Scales of one half of the rows, as the codes lie: [.. g][t][q][h].
  ValueId spread(ValueId scales, int half) const {
    ValueId own = b.slice(scales, {0, 4 * half}, {rows / 2, 4});
    ValueId pairs = b.broadcast(b.reshape(own, {rows * 2, 1}), {rows * 2, 2});
    ValueId four = b.broadcast(b.reshape(pairs, {1, rows * 4}), {4, rows * 4});
    int top = log2_of(rows * 4);
    std::vector<int64_t> bits{0, 1, 2, top, top + 1};
    for (int bit = 3; bit < top; ++bit) bits.push_back(bit);
    return b.permute(four, bits, {rows * 2, 8});
  }

  ValueId dequantize(ValueId ring, ValueId stage) const {
    ValueId words = b.read(ring, stage, {rows * 2, 4});
    ValueId packed = b.read(ring, stage, {rows / 2, 2}, b.index(rows * 8));
    ValueId finite = b.binary(Fn::kAnd, packed, constant(0x3F3F3F3F, {rows / 2, 2}));
    ValueId scales = b.cast(b.unary(Fn::kDequantizeF8E4M3FN, b.bitcast(finite, DType::kU8)), kF16);
    std::vector<ValueId> pairs;
    for (int J = 0; J < 4; ++J) pairs.push_back(b.mul(codes(words, J), spread(scales, J & 1)));
    int blocks = log2_of(rows / 64);
    std::vector<int64_t> bits{0, 3, 4, 11 + blocks, 1, 2, 5, 6, 7, 10 + blocks, 8, 9};
    for (int i = 0; i < blocks; ++i) bits.push_back(10 + i);
    return b.permute(b.concat(pairs, 0), bits, {rows, kStep});
  }
};

struct Shape {
  int rows, tokens, stages, threads;
};

// sums + left * right of a step, in `parts` along k, each times a factor of its own.
ValueId add_parts(Builder& b, ValueId sums, ValueId left, ValueId ring, ValueId stage, int tokens,
                  int parts) {
  const int rows = b.type(left).shape[0], depth = kStep / parts;
  for (int part = 0; part < parts; ++part) {
    ValueId right = b.read(ring, stage, {tokens, depth}, b.index(part * depth), {kStep, 1});
    ValueId product = b.dot(b.constant(kF32, 0, {rows, tokens}),
                            b.slice(left, {0, part * depth}, {rows, depth}), b.transpose(right));
    sums = b.fma(product, b.constant(kF32, part % 2 == 0 ? 0.5 : 2, {rows, tokens}), sums);
  }
  return sums;
}

// y[m, n] = x[m, k] * w[n, k]', tile after tile of a persistent block; in parts of a step where
// there are more than one.
Sample packed_product(const Shape& shape, DType to, int parts = 1) {
  auto [rows, tokens, stages, threads] = shape;
  Builder b("packed_product");
  PackedWeights weights{b, rows};
  ValueId w = b.buffer("w", kU32, /*constant=*/true), x = b.buffer("x", kF16);
  ValueId bias = b.buffer("bias", kF32, /*constant=*/true), y = b.buffer("y", to);
  ValueId m = b.index_parameter("m"), n = b.index_parameter("n"), k = b.index_parameter("k");
  ValueId blocks = b.index_parameter("blocks");
  ValueId ring_w = b.ring(kU32, {weights.words()}, stages);
  ValueId ring_x = b.ring(kF16, {tokens, kStep}, stages);
  auto up = [&](ValueId size, int by) { return b.div(b.add(size, b.index(by - 1)), b.index(by)); };
  ValueId steps = b.div(k, b.index(kStep)), tiles_n = up(n, rows);
  ValueId tiles = b.mul(tiles_n, up(m, tokens));
  b.loop(b.task(), tiles, blocks, {}, [&](ValueId tile, std::span<const ValueId>) {
    ValueId tile_n = b.rem(tile, tiles_n);
    ValueId row = b.mul(tile_n, b.index(rows));
    ValueId token = b.mul(b.div(tile, tiles_n), b.index(tokens));
    ValueId first = b.mul(tile_n, steps);
    ValueId sums = b.pipeline(
        stages, b.index(0), steps, {b.constant(kF32, 0, {rows, tokens})},
        [&](ValueId i, ValueId stage) {
          b.bulk_load(ring_w, stage, w, b.mul(b.add(first, i), b.index(weights.words())));
          b.tma_load(ring_x, stage, {x, m, k, k}, token, b.mul(i, b.index(kStep)));
        },
        [&](ValueId, ValueId stage, std::span<const ValueId> carried) {
          ValueId left = weights.dequantize(ring_w, stage);
          if (parts > 1) {
            return std::vector{add_parts(b, carried[0], left, ring_x, stage, tokens, parts)};
          }
          ValueId right = b.transpose(b.read(ring_x, stage, {tokens, kStep}));
          return std::vector{b.dot(carried[0], left, right)};
        })[0];
    ValueId turned = b.mul(b.transpose(sums), b.constant(kF32, 0x1p14 * 0.25));
    ValueId left_rows = b.sub(n, row);
    ValueId added = b.load({bias, row, {}, {left_rows}}, {rows});
    ValueId out = b.add(turned, b.broadcast(added, {tokens, rows}));
    ValueId at = b.add(b.mul(token, n), row);
    b.store({y, at, {n, b.index(1)}, {b.sub(m, token), left_rows}}, b.cast(out, to));
    return std::vector<ValueId>{};
  });
  int64_t M = tokens + 3, N = rows * 2, K = 3 * kStep;
  std::string name = "packed_product_" + std::to_string(rows) + "x" + std::to_string(tokens) + "_" +
                     std::string(tenon::name(to)) + "_t" + std::to_string(threads);
  if (parts > 1) name += "_parts" + std::to_string(parts);
  return {name,
          b.finish(),
          threads,
          3,
          {{kU32, N * K / 64 * 9, 4294967295.0}, {kF16, M * K, 1}, {kF32, N}, {to, M * N, 0}},
          {M, N, K, 3},
          2e-3};
}

// y = sum of p v over steps, warp by warp: each has 16 rows of p and, of a stage of v, rows of its
// own. Past the length, which is read from memory, v holds what does not count.
Sample grouped_rows(int columns_of_p, int columns, DType dtype) {
  constexpr int kGroups = 8, kRows = 16;
  const int keys = kGroups * columns_of_p;
  Builder b("grouped_rows");
  ValueId p = b.buffer("p", dtype, /*constant=*/true), v = b.buffer("v", dtype);
  ValueId lengths = b.buffer("lengths", DType::kI32), y = b.buffer("y", kF32);
  ValueId rows = b.index_parameter("rows");
  ValueId ring = b.ring(dtype, {keys, columns}, 2);
  ValueId length = b.index_from(b.load({lengths, b.task()}, {}));
  ValueId steps = b.div(b.add(length, b.index(keys - 1)), b.index(keys));
  ValueId first = b.mul(b.task(), rows);
  ValueId sums = b.pipeline(
      2, b.index(0), steps, {b.constant(kF32, 0, {kGroups * kRows, columns})},
      [&](ValueId i, ValueId stage) {
        b.tma_load(ring, stage, {v, b.index(1000), b.index(columns), b.index(columns)},
                   b.add(first, b.mul(i, b.index(keys))), b.index(0));
      },
      [&](ValueId i, ValueId stage, std::span<const ValueId> carried) {
        ValueId left = b.load({p, b.index(0)}, {kGroups * kRows, columns_of_p});
        ValueId extent = b.sub(length, b.mul(i, b.index(keys)));
        ValueId right = b.read(ring, stage, {keys, columns}, kNone, {}, extent);
        return std::vector{b.grouped_dot(carried[0], left, right, kGroups)};
      })[0];
  b.store({y, b.mul(b.task(), b.index(kGroups * kRows * columns))}, sums);
  std::string name = "grouped_rows_" + std::to_string(columns_of_p) + "x" +
                     std::to_string(columns) + "_" + std::string(tenon::name(dtype));
  return {name,
          b.finish(),
          256,
          3,
          {{dtype, int64_t{kGroups} * kRows * columns_of_p, 1},
           {dtype, 1000 * columns, 1},
           {DType::kI32, 3, 300},
           {kF32, int64_t{3} * kGroups * kRows * columns, 0}},
          {300},
          2e-3};
}

// y[m, n] = x[m, k] * w[n, k]' for few rows of x: warps share 16 rows of w and have k of their own.
Sample grouped_product(int tokens, int stages, DType dtype) {
  constexpr int kGroups = 8, kRows = 16, kDepth = kGroups * kStep;
  const int columns = std::max(8, tokens);
  Builder b("grouped_product");
  ValueId w = b.buffer("w", dtype, /*constant=*/true), x = b.buffer("x", dtype);
  ValueId y = b.buffer("y", kF32);
  ValueId m = b.index_parameter("m"), n = b.index_parameter("n"), k = b.index_parameter("k");
  ValueId blocks = b.index_parameter("blocks");
  ValueId ring_w = b.ring(dtype, {kGroups * kRows, kStep}, stages);
  ValueId ring_x = b.ring(dtype, {kGroups * tokens, kStep}, stages);
  ValueId shares = b.alloc(kF32, int64_t{kGroups} * kRows * columns);
  ValueId tiles = b.div(b.add(n, b.index(kRows - 1)), b.index(kRows));
  b.loop(b.task(), tiles, blocks, {}, [&](ValueId tile, std::span<const ValueId>) {
    ValueId row = b.mul(tile, b.index(kRows));
    ValueId sums = b.pipeline(
        stages, b.index(0), b.div(b.add(k, b.index(kDepth - 1)), b.index(kDepth)),
        {b.constant(kF32, 0, {kGroups * kRows, columns})},
        [&](ValueId i, ValueId stage) {
          ValueId first = b.mul(i, b.index(kDepth));
          b.tma_load(ring_w, stage, {w, n, k, k}, row, first, kGroups);
          b.tma_load(ring_x, stage, {x, m, k, k}, b.index(0), first, kGroups);
        },
        [&](ValueId, ValueId stage, std::span<const ValueId> carried) {
          ValueId left = b.read(ring_w, stage, {kGroups * kRows, kStep});
          ValueId right = b.transpose(b.read(ring_x, stage, {kGroups * tokens, kStep}));
          return std::vector{b.grouped_dot(carried[0], left, right, kGroups)};
        })[0];
    b.store({shares, b.index(0)}, sums);
    ValueId total = b.constant(kF32, 0, {tokens, kRows});
    for (int group = 0; group < kGroups; ++group) {
      ValueId first = b.index(int64_t{group} * kRows * columns);
      ValueId share = b.load({shares, first, {b.index(1), b.index(columns)}, {}}, {tokens, kRows});
      total = b.add(total, share);
    }
    b.store({y, row, {n, b.index(1)}, {m, b.sub(n, row)}}, total);
    return std::vector<ValueId>{};
  });
  int64_t M = tokens == 1 ? 1 : tokens - 1, N = 3 * kRows - 5, K = 3 * kDepth - 2 * kStep;
  std::string name =
      "grouped_product_" + std::to_string(tokens) + "_" + std::string(tenon::name(dtype));
  return {
      name,         b.finish(), 256, 2, {{dtype, N * K, 1}, {dtype, M * K, 1}, {kF32, M * N, 0}},
      {M, N, K, 2}, 2e-3};
}

// y[n, m] = w[n, k] * x[m, k]', both sides as they are; f32 as tf32.
Sample plain_product(const Shape& shape, DType dtype) {
  auto [rows, tokens, stages, threads] = shape;
  const bool tf32 = dtype == kF32;
  const int depth = tf32 ? kStep / 2 : kStep;
  Builder b("plain_product");
  ValueId w = b.buffer("w", dtype, /*constant=*/true), x = b.buffer("x", dtype);
  ValueId y = b.buffer("y", kF32);
  ValueId m = b.index_parameter("m"), n = b.index_parameter("n"), k = b.index_parameter("k");
  ValueId ring_w = b.ring(dtype, {rows, depth}, stages);
  ValueId ring_x = b.ring(dtype, {tokens, depth}, stages);
  ValueId steps = b.div(b.add(k, b.index(depth - 1)), b.index(depth));
  ValueId row = b.mul(b.task(), b.index(rows)), zero = b.index(0);
  ValueId sums = b.pipeline(
      stages, zero, steps, {b.constant(kF32, 0, {rows, tokens})},
      [&](ValueId i, ValueId stage) {
        ValueId column = b.mul(i, b.index(depth));
        b.tma_load(ring_w, stage, {w, n, k, k}, row, column);
        b.tma_load(ring_x, stage, {x, m, k, k}, zero, column);
      },
      [&](ValueId, ValueId stage, std::span<const ValueId> carried) {
        ValueId left = b.read(ring_w, stage, {rows, depth});
        ValueId right = b.transpose(b.read(ring_x, stage, {tokens, depth}));
        return std::vector{tf32 ? b.dot_tf32(carried[0], left, right)
                                : b.dot(carried[0], left, right)};
      })[0];
  b.store({y, b.mul(row, m), {m, b.index(1)}, {b.sub(n, row), m}}, sums);
  int64_t M = tokens - 3, N = rows * 2 - 5, K = 3 * depth + 8;
  std::string name = "plain_product_" + std::to_string(rows) + "x" + std::to_string(tokens) + "_" +
                     std::string(tenon::name(dtype)) + "_t" + std::to_string(threads);
  return {name,      b.finish(), threads, 2, {{dtype, N * K}, {dtype, M * K}, {kF32, M * N, 0}},
          {M, N, K}, 1e-5};
}

// Two products that run at once: scores of keys, and values weighted by the scores before, whose
// sums are halved in rows where a score is high. Values past the last key may be anything.
Sample overlapping_products(int keys_of_stage, int threads, DType dtype) {
  constexpr int kDepth = 64, kNarrow = 32;
  const int rows = threads / 2;
  Builder b("overlapping_products");
  ValueId q = b.buffer("q", dtype), k = b.buffer("k", dtype), v = b.buffer("v", dtype);
  ValueId y = b.buffer("y", kF32), n = b.index_parameter("n");
  ValueId wide = b.index(2 * kDepth + kNarrow), depth = b.index(kDepth), one = b.index(1);
  ValueId ring_k = b.ring(dtype, {keys_of_stage, kDepth}, 2);
  std::vector<ValueId> rings;
  for (int width : {kDepth, kDepth, kNarrow}) {
    rings.push_back(b.ring(dtype, {keys_of_stage, width}, 2));
  }
  ValueId row = b.mul(b.task(), b.index(rows)), step_keys = b.index(keys_of_stage);
  ValueId queries = b.load({q, b.mul(row, depth), {depth, one}, {}}, {rows, kDepth});
  ValueId steps = b.div(b.add(n, b.index(keys_of_stage - 1)), step_keys);
  auto spread = [&](ValueId x, int columns) {
    return b.broadcast(b.reshape(x, {rows, 1}), {rows, columns});
  };
  std::vector<ValueId> out = b.pipeline(
      2, b.index(0), steps,
      {b.constant(dtype, 0, {rows, keys_of_stage}), b.constant(kF32, 0, {rows, 2 * kDepth}),
       b.constant(kF32, 0, {rows, kNarrow})},
      [&](ValueId i, ValueId stage) {
        ValueId key = b.mul(i, step_keys);
        b.tma_load(ring_k, stage, {k, n, depth, depth}, key, b.index(0));
        for (size_t part = 0; part < rings.size(); ++part) {
          ValueId column = b.index(static_cast<int64_t>(part) * kDepth);
          b.tma_load(rings[part], stage, {v, n, wide, wide}, key, column);
        }
      },
      [&](ValueId i, ValueId stage, std::span<const ValueId> before) {
        ValueId left = b.sub(n, b.mul(i, step_keys));
        std::vector<ValueId> values;
        for (ValueId ring : rings) {
          values.push_back(b.read(ring, stage, b.type(ring).shape, kNone, {}, left));
        }
        ValueId keys = b.transpose(b.read(ring_k, stage, {keys_of_stage, kDepth}));
        ValueId scores = b.dot(b.constant(kF32, 0, {rows, keys_of_stage}), queries, keys);
        ValueId both = b.concat(std::span(values).first(2), 1);
        ValueId sums = b.dot(before[1], before[0], both);
        ValueId narrow = b.dot(before[2], before[0], values[2]);
        ValueId top = b.reduce(Fn::kMax, scores, 1);
        ValueId is_high = b.compare(Fn::kGreater, top, b.constant(kF32, 0.5, {rows}));
        ValueId factor =
            b.select(is_high, b.constant(kF32, 0.5, {rows}), b.constant(kF32, 1, {rows}));
        sums = b.mul(sums, spread(factor, 2 * kDepth));
        narrow = b.mul(narrow, spread(factor, kNarrow));
        return std::vector{b.cast(scores, dtype), sums, narrow};
      });
  b.store({y, b.mul(row, wide), {wide, one}, {}}, out[1]);
  b.store({y, b.add(b.mul(row, wide), b.index(2 * kDepth)), {wide, one}, {}}, out[2]);
  int64_t M = 2 * rows, N = 3 * keys_of_stage - 7, D = 2 * kDepth + kNarrow;
  std::string name = "overlapping_products_" + std::to_string(keys_of_stage) + "_" +
                     std::string(tenon::name(dtype)) + "_t" + std::to_string(threads);
  return {name,
          b.finish(),
          threads,
          2,
          {{dtype, M * kDepth, 0.2}, {dtype, N * kDepth, 0.2}, {dtype, N * D, 1}, {kF32, M * D, 0}},
          {N},
          2e-2};
}

}  // namespace

std::vector<Sample> pipeline_samples() {
  std::vector<Sample> out;
  for (const Shape& shape :
       {Shape{64, 8, 4, 128}, {128, 32, 4, 256}, {128, 64, 4, 256}, {128, 256, 2, 256}}) {
    out.push_back(packed_product(shape, kF16));
  }
  out.push_back(packed_product({256, 128, 2, 256}, kF16));
  out.back().representative = false;  // needs the registers that copying threads leave over
  out.push_back(packed_product({128, 64, 4, 256}, kF32));
  out.push_back(packed_product({128, 8, 4, 256}, kF32, 4));
  out.push_back(packed_product({128, 64, 2, 256}, kF32, 2));
  out.push_back(plain_product({128, 128, 2, 256}, kF16));
  out.push_back(plain_product({64, 32, 4, 128}, DType::kBF16));
  out.push_back(plain_product({256, 64, 2, 256}, DType::kBF16));
  out.back().representative = false;
  out.push_back(plain_product({128, 128, 2, 256}, kF32));
  out.push_back(plain_product({128, 8, 4, 256}, kF32));
  out.push_back(plain_product({64, 16, 4, 128}, kF32));
  out.push_back(overlapping_products(128, 256, kF16));
  out.push_back(overlapping_products(64, 128, DType::kBF16));
  for (int tokens : {1, 8, 16}) out.push_back(grouped_product(tokens, 2, kF16));
  out.push_back(grouped_product(16, 2, DType::kBF16));
  out.push_back(grouped_rows(16, 64, kF16));
  out.push_back(grouped_rows(32, 64, DType::kBF16));
  out.push_back(grouped_rows(16, 128, kF16));  // rows of two pieces
  return out;
}

}  // namespace tenon::codegen
