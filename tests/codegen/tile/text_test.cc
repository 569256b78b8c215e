#include "codegen/tile/text.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "codegen/tile/builder.h"
#include "codegen/tile/verify.h"

namespace tenon::codegen {
namespace {

constexpr std::string_view kRowSum =
    R"(kernel @row_sum(%x: buffer<f32>, %y: buffer<f32>, %n: index) {
  %0 = task : index
  %1 = index.mul %0, %n : index
  %2 = constant 0.0 : f32[16]
  %3 = for %4 = 0 to %n step 16 carry(%5 = %2) {
    %6 = index.add %1, %4 : index
    %7 = index.sub %n, %4 : index
    %8 = load %x[%6] strides(1) extents(%7) fill 0.0 : f32[16]
    %9 = add %5, %8 : f32[16]
    yield %9
  } : f32[16]
  %10 = reduce.add %3 axis 0 : f32[]
  store %y[%0], %10 : f32[]
}
)";

TEST(TextTest, PrintsWhatItParsed) { EXPECT_EQ(print(parse(kRowSum)), kRowSum); }

// Uses every operation once.
Kernel everything() {
  Builder b("everything");
  ValueId x = b.buffer("x", DType::kF32), bytes = b.buffer("bytes", DType::kU8);
  ValueId n = b.index_parameter("n");
  ValueId t = b.task();
  ValueId i = b.add(b.sub(b.mul(t, n), b.index(-3)), b.rem(b.div(n, b.index(2)), b.index(7)));
  i = b.max(b.min(i, n), b.index(0));
  i = b.select(b.less(i, n), i, b.select(b.equal(i, n), n, b.index(5)));
  i = b.add(i, b.index_from(b.integer_constant(DType::kI32, 4)));
  ValueId tile = b.load({x, i, {b.index(8), b.index(1)}, {n, kNone}}, {4, 8}, 1.5);
  ValueId codes = b.load({bytes, i}, {16});
  ValueId table =
      b.table(DType::kF32, {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, 1e-40});
  ValueId words = b.table(DType::kI32, {1, -2, 3});
  ValueId looked = b.lookup(table, codes);
  ValueId dequantized = b.unary(Fn::kDequantizeF8E4M3FN, codes);
  ValueId encoded = b.quantize(Fn::kQuantizeF8E8M0, dequantized, EncodeRule{true, RoundMode::kUp});
  encoded = b.binary(Fn::kXor, encoded, b.quantize(Fn::kQuantizeF8E5M2, looked, false));
  ValueId sum = b.add(looked, b.cast(encoded, DType::kF32));
  ValueId square = b.reshape(sum, {4, 4});
  square = b.transpose(b.fma(square, square, b.from_index(n, DType::kF32)));
  ValueId part = b.slice(square, {1, 0}, {2, 4});
  ValueId both = b.concat(std::vector{part, part}, 0);
  ValueId acc = b.dot(b.splat(b.constant(DType::kF32, -1), {4, 8}), both, tile);
  acc = b.select(b.unary(Fn::kIsNan, acc), b.broadcast(b.reduce(Fn::kMax, acc, 0), {4, 8}), acc);
  ValueId ints = b.dot_i8(b.integer_constant(DType::kI32, 0, {4, 4}), b.reshape(codes, {4, 4}),
                          b.bitcast(b.reshape(codes, {4, 4}), DType::kI8));
  ValueId halves = b.alloc(DType::kBF16, 2048);
  b.tile_dot({x, i}, {halves, n}, {halves, b.index(0)}, {16, 32, n, b.index(32)});
  ValueId scratch = b.alloc(DType::kI32, 64);
  b.store({scratch, b.index(0)}, ints);
  b.prefetch(x, i);
  ValueId where = b.iota(DType::kI32, {8}, 0);
  ValueId mask = b.compare(Fn::kLess, where, b.splat(b.reduce(Fn::kAdd, words, 0), {8}));
  ValueId gathered = b.gather(x, i, where, mask, 2);
  b.scatter(x, i, where, gathered);
  b.scatter(x, i, where, b.gather(x, i, where), mask);
  auto looped = b.loop(b.index(0), n, b.index(2), {gathered, n},
                       [&](ValueId at, std::span<const ValueId> in) -> std::vector<ValueId> {
                         return {b.unary(Fn::kExp, in[0]), b.add(at, in[1])};
                       });
  auto chosen = b.branch(
      b.less(looped[1], n), [&]() -> std::vector<ValueId> { return {looped[0]}; },
      [&]() -> std::vector<ValueId> { return {gathered}; });
  b.branch(b.less(n, looped[1]), [&]() -> std::vector<ValueId> {
    b.store({x, i, {}, {n}}, chosen[0]);
    return {};
  });
  b.store({x, b.add(i, n)}, acc);
  return b.finish();
}

TEST(TextTest, RoundTripsEveryOperation) {
  Kernel kernel = everything();
  std::string text = print(kernel);
  EXPECT_EQ(print(parse(text)), text);
}

void expect_refused(std::string_view text, std::string_view why) {
  try {
    parse(text);
    FAIL() << "accepted: " << text;
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
}

TEST(TextTest, RoundTripsPipelines) {
  const std::string text =
      R"(kernel @fused(%w: constant buffer<u32>, %x: buffer<f16>, %y: buffer<f32>, %c: buffer<i32>, %n: index) {
  %0 = task : index
  %1 = ring 3 : ring<u32[64]>
  %2 = ring 3 : ring<f16[8,16]>
  %3 = constant 0.0 : f32[16,8]
  %4 = pipeline 3 0 to %n produce(%5, %6) {
    %7 = index.mul %5, 64 : index
    bulk_load %1[%6], %w[%7]
    tma_load %2[%6], %x[0, %7] of(8, %n, %n)
    yield
  } consume(%8, %9) carry(%10 = %3) {
    %11 = read %1[%9, _] : u32[32,2]
    %12 = bitcast %11 : f16[32,4]
    %13 = slice %12 offsets(0, 0) : f16[32,4]
    %14 = concat %12, %13 axis 0 : f16[64,4]
    %15 = permute %14 bits(7, 6, 5, 4, 3, 2, 1, 0) : f16[16,16]
    %16 = read %2[%9, 0] strides(16, 1) extent %8 : f16[8,16]
    %17 = transpose %16 : f16[16,8]
    %18 = dot %10, %15, %17 : f32[16,8]
    yield %18
  } : f32[16,8]
  %19 = arrive %c[%0] : index
  store %y[0], %4 strides(8, 1) : f32[16,8]
}
)";
  EXPECT_EQ(print(parse(text)), text);
}

TEST(TextTest, Tf32IsAWordOfTheProduct) {
  auto kernel = [](const std::string& dtype, const std::string& words) {
    return "kernel @k() {\n  %0 = constant 1.0 : " + dtype + "[4,4]\n  %1 = dot %0, %0, %0" +
           words + " : " + dtype + "[4,4]\n}\n";
  };
  const std::string text = kernel("f32", " tf32");
  EXPECT_EQ(print(parse(text)), text);
  EXPECT_NE(print(parse(kernel("f32", ""))), text);
  expect_refused(kernel("f64", " tf32"), "tf32 products are of f32 tiles, not of f64[4,4]");
  expect_refused(kernel("f32", " groups 1 tf32"), "tf32 products have no groups");
}

TEST(TextTest, RefusesWithTheLine) {
  expect_refused("kernel @k() {\n  %0 = task : index\n  %1 = nonsense %0 : index\n}", "line 3");
  expect_refused("kernel @k() {\n  %0 = splat %9 : f32[4]\n}", "%9 is not defined");
  expect_refused("kernel @k() {\n  %0 = constant 1.0 : f99[4]\n}", "no element type");
  expect_refused("kernel @k() {\n  %0 = constant 1.0 : f32[0]\n}", "no tile size");
  expect_refused("kernel @k() {\n  %0 = task : index\n  %0 = task : index\n}", "defined twice");
  expect_refused("kernel @k() {\n", "expected");
  expect_refused("kernel @k() {\n}\nmore", "text after the kernel");
  expect_refused("", "expected 'kernel'");
}

TEST(TextTest, RefusesWhatTheVerifierRefuses) {
  expect_refused(
      "kernel @k(%x: buffer<f32>) {\n %0 = load %x[0] strides(1) : f32[4]\n"
      " %1 = load %x[0] strides(1) : f32[8]\n %2 = add %0, %1 : f32[4]\n}",
      "operand 1 must be f32[4], is f32[8]");
}

TEST(TextTest, ReadsIntegersInFloatTables) {
  Kernel kernel = parse("kernel @k() {\n  %0 = constant [0, 1, -2] : f32[3]\n}");
  EXPECT_NE(print(kernel).find("constant [0.0, 1.0, -2.0] : f32[3]"), std::string::npos);
}

}  // namespace
}  // namespace tenon::codegen
