#include "codegen/tile/verify.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "codegen/tile/builder.h"
#include "codegen/tile/text.h"

namespace tenon::codegen {
namespace {

void expect_refused(const std::function<void(Builder&)>& write, std::string_view why) {
  Builder b("k");
  try {
    write(b);
    b.finish();
    FAIL() << "accepted; expected: " << why;
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
}

TEST(VerifyTest, RefusesWrongTypes) {
  auto f32 = [](Builder& b, std::vector<int> shape) { return b.constant(DType::kF32, 0, shape); };
  expect_refused([&](Builder& b) { b.binary(Fn::kAnd, f32(b, {4}), f32(b, {4})); },
                 "does not take f32[4]");
  expect_refused([&](Builder& b) { b.unary(Fn::kExp, b.constant(DType::kI32, 0, {4})); },
                 "exp: does not take i32[4]");
  expect_refused([&](Builder& b) { b.transpose(f32(b, {4})); }, "needs rank 2");
  expect_refused([&](Builder& b) { b.slice(f32(b, {4}), {2}, {4}); }, "leave f32[4]");
  expect_refused([&](Builder& b) { b.reshape(f32(b, {4}), {3}); }, "differ in size");
  expect_refused([&](Builder& b) { b.broadcast(f32(b, {3}), {4}); }, "does not broadcast");
  expect_refused([&](Builder& b) { b.bitcast(f32(b, {3}), DType::kI64); }, "differ in width");
  expect_refused([&](Builder& b) { b.reduce(Fn::kSub, f32(b, {3}), 0); }, "not a reduction");
  expect_refused([&](Builder& b) { b.reduce(Fn::kAdd, f32(b, {3}), 1); }, "axis 1 is outside");
  expect_refused([&](Builder& b) { b.lookup(f32(b, {8}), b.constant(DType::kU8, 0, {4})); },
                 "16 or 256 entries");
  expect_refused(
      [&](Builder& b) {
        b.dot(f32(b, {2, 4}), f32(b, {2, 3}), f32(b, {2, 4}));
      },
      "do not fit");
  expect_refused(
      [&](Builder& b) {
        ValueId half = b.constant(DType::kF16, 0, {2, 2});
        b.dot_tf32(f32(b, {2, 2}), f32(b, {2, 2}), half);
      },
      "tf32 products are of f32 tiles, not of f16[2,2]");
  expect_refused([&](Builder& b) { b.constant(DType::kF8E4M3FN, 0, {4}); },
                 "cannot be computed with");
  expect_refused([&](Builder& b) { f32(b, {2, 2, 2}); }, "rank above 2");
  expect_refused([&](Builder& b) { f32(b, {1 << 16}); }, "more than 32768 elements");
  expect_refused([&](Builder& b) { b.add(b.index(1), f32(b, {})); }, "must be an index");
}

TEST(BuilderTest, TheTypeOfAValueStaysWhereItIs) {
  Builder b("k");
  const ValueId tile = b.constant(DType::kF32, 0, {4});
  const Type& type = b.type(tile);
  for (int i = 0; i < 1000; ++i) b.splat(b.constant(DType::kF32, i), type.shape);
  EXPECT_EQ(&type, &b.type(tile));
}

TEST(VerifyTest, RefusesBadMemory) {
  expect_refused([](Builder& b) { b.alloc(DType::kF32, 1 << 20); }, "are outside 1");
  expect_refused(
      [](Builder& b) {
        for (int i = 0; i < 3; ++i) b.alloc(DType::kF32, 30 << 10);
      },
      "scratch of the kernel exceeds");
  expect_refused(
      [](Builder& b) {
        ValueId x = b.buffer("x", DType::kF32);
        b.store({x, b.index(0)}, b.constant(DType::kI32, 0, {4}));
      },
      "the value must be f32[4]");
  expect_refused(
      [](Builder& b) {
        ValueId x = b.buffer("x", DType::kF32);
        b.load({x, b.index(0), {b.index(1)}, {}}, {4, 8});
      },
      "a stride and an extent per dimension");
}

TEST(VerifyTest, RefusesValuesOutsideTheirRegion) {
  ValueId inside = kNone;
  expect_refused(
      [&](Builder& b) {
        b.loop(b.index(0), b.index(4), b.index(1), {}, [&](ValueId, std::span<const ValueId>) {
          inside = b.constant(DType::kF32, 1, {4});
          return std::vector<ValueId>{};
        });
        b.unary(Fn::kNeg, inside);
      },
      "used where it is not defined");
}

// Numbers of a text that only a sum or a product beyond 64 bits would let through.
TEST(VerifyTest, RefusesNumbersThatOverflow) {
  const auto why_not = [](const std::string& line) -> std::string {
    try {
      parse(
          "kernel @k(%y: buffer<f32>) {\n%r = ring 2 : ring<f32[4,4]>\n"
          "%t = constant 1.0 : f32[4,4]\n%b = constant 1.0 : f32[8,4]\n%c = iota axis 0 : "
          "f32[4]\n" +
          line + "\n}\n");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  const std::string most = "9223372036854775807", least = "-9223372036854775808";
  const std::vector<std::string> lines = {
      "%9 = slice %t offsets(" + most + ", 0) : f32[1,4]",
      "%9 = slice %t offsets(0, 9223372036854775805) : f32[4,3]",
      "%9 = slice %t offsets(" + least + ", 0) : f32[1,4]",
      "%9 = dot %t, %t, %b groups " + most + " : f32[4,4]",
      "%9 = dot %t, %t, %b groups 4611686018427387906 : f32[4,4]",
      "%9 = dot %t, %t, %t groups 4 blocks 1 from " + most + " zeros 0 : f32[4,4]",
      "%9 = read %r[0, 0] strides(" + most + ", " + most + ") : f32[4,4]",
      "%9 = read %r[0, 0] strides(6148914691236517206, 0) : f32[4,4]",
      "%9 = iota axis 4294967296 : f32[4]",
      "%9 = iota axis " + most + " : f32[4]"};
  for (const std::string& line : lines) {
    EXPECT_NE(why_not(line), "") << line;
  }
  std::string bits = "0, 1, 2, 3", parts = "%c";
  for (int i = 4; i < 68; ++i) bits += ", " + std::to_string(i);
  EXPECT_NE(why_not("%9 = permute %t bits(" + bits + ") : f32[4,4]"), "");
  for (int i = 0; i < 10000; ++i) parts += ", %c";
  EXPECT_NE(why_not("%9 = concat " + parts + " axis 0 : f32[4]").find("40004 elements"),
            std::string::npos);
  EXPECT_EQ(why_not("%9 = slice %t offsets(1, 0) : f32[3,4]"), "");
  EXPECT_EQ(why_not("%9 = read %r[0, 0] strides(4, 1) : f32[4,4]"), "");
}

TEST(VerifyTest, RefusesYieldsOfTheWrongType) {
  expect_refused(
      [&](Builder& b) {
        b.loop(b.index(0), b.index(4), b.index(1), {b.constant(DType::kF32, 1, {4})},
               [&](ValueId, std::span<const ValueId>) {
                 return std::vector<ValueId>{b.constant(DType::kF32, 1, {8})};
               });
      },
      "yield: value 0 must be f32[4], is f32[8]");
  expect_refused(
      [&](Builder& b) {
        b.branch(b.less(b.index(0), b.task()),
                 [&]() -> std::vector<ValueId> { return {b.index(1)}; }, {});
      },
      "yield: expected 1 values, got 0");
}

TEST(VerifyTest, RefusesBrokenKernels) {
  Builder b("k");
  ValueId x = b.buffer("x", DType::kF32);
  b.store({x, b.index(0)}, b.constant(DType::kF32, 1, {4}));
  Kernel kernel = b.finish();
  ASSERT_TRUE(verify(kernel));

  Kernel twice = kernel;
  twice.body.operations.push_back(twice.body.operations[0]);
  EXPECT_NE(verify(twice).reason.find("defined twice"), std::string::npos);

  Kernel dangling = kernel;
  dangling.body.operations.back().operands[0] = 99;
  EXPECT_FALSE(verify(dangling));

  Kernel yielding = kernel;
  yielding.body.operations.push_back({.op = Op::kYield});
  EXPECT_NE(verify(yielding).reason.find("yield"), std::string::npos);
}

TEST(BuilderTest, FoldsIndexConstants) {
  Builder b("k");
  ValueId n = b.index_parameter("n");
  EXPECT_EQ(b.add(b.index(2), b.index(3)), b.index(5));
  EXPECT_EQ(b.mul(n, b.index(1)), n);
  EXPECT_EQ(b.add(b.index(0), n), n);
  EXPECT_EQ(b.mul(b.index(0), n), b.index(0));
  EXPECT_EQ(b.rem(n, b.index(1)), b.index(0));
  EXPECT_EQ(b.div(b.index(7), b.index(2)), b.index(3));
  EXPECT_EQ(b.min(b.index(7), b.index(2)), b.index(2));
  EXPECT_EQ(b.task(), b.task());
}

}  // namespace
}  // namespace tenon::codegen
