// What each operation asks of layouts, one case per rule.
#include <gtest/gtest.h>

#include <functional>

#include "codegen/layout_inference/constraints.h"
#include "codegen/tile/builder.h"
#include "tests/codegen/gpu_samples.h"

namespace tenon::codegen {
namespace {

using Strings = std::vector<std::string>;

// The constraints of a kernel, without the line of their operation.
Strings constraints_in(const Kernel& kernel, int threads = 128) {
  System system = constraints_of(kernel, threads);
  ConstraintPrinter print(system);
  Strings out;
  for (const Constraint& constraint : system.constraints) {
    std::string text = print(constraint);
    out.push_back(text.substr(0, text.find(": ")));
  }
  return out;
}

// Two tiles f32[32,16], %0 and %1, are there already; what their loads ask for is left out.
struct Case {
  const char* name;
  std::function<void(Builder& b, ValueId buffer, ValueId x, ValueId y)> write;
  Strings expected;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"unary",
       [](Builder& b, ValueId, ValueId x, ValueId) { b.unary(Fn::kNeg, x); },
       {"%0 is read in the layout of %2", "%2 is worked on"}},
      {"binary",
       [](Builder& b, ValueId, ValueId x, ValueId y) { b.add(x, y); },
       {"%0 is read in the layout of %2", "%1 is read in the layout of %2", "%2 is worked on"}},
      {"ternary",
       [](Builder& b, ValueId, ValueId x, ValueId y) { b.fma(x, y, x); },
       {"%0 is read in the layout of %2", "%1 is read in the layout of %2",
        "%0 is read in the layout of %2", "%2 is worked on"}},
      {"compare and select",
       [](Builder& b, ValueId, ValueId x, ValueId y) { b.select(b.less(x, y), x, y); },
       {"%0 is read in the layout of %2", "%1 is read in the layout of %2", "%2 is worked on",
        "%2 is read in the layout of %3", "%0 is read in the layout of %3",
        "%1 is read in the layout of %3", "%3 is worked on"}},
      {"cast",
       [](Builder& b, ValueId, ValueId x, ValueId) { b.cast(x, DType::kF16); },
       {"%0 is read in the layout of %2", "%2 is worked on"}},
      {"bitcast",
       [](Builder& b, ValueId, ValueId x, ValueId) { b.bitcast(x, DType::kU32); },
       {"%0 is read in the layout of %2", "%2 is worked on"}},
      {"bitcast to narrower elements",
       [](Builder& b, ValueId, ValueId x, ValueId) { b.bitcast(x, DType::kF16); },
       {"%2 is made of %0"}},
      {"constant",
       [](Builder& b, ValueId, ValueId, ValueId) { b.constant(DType::kF32, 1, {8}); },
       {"%2 is worked on"}},
      {"iota",
       [](Builder& b, ValueId, ValueId, ValueId) { b.iota(DType::kI32, {8}, 0); },
       {"%2 is worked on"}},
      {"reshape",
       [](Builder& b, ValueId, ValueId x, ValueId) { b.reshape(x, {512}); },
       {"%2 is made of %0"}},
      {"transpose",
       [](Builder& b, ValueId, ValueId x, ValueId) { b.unary(Fn::kNeg, b.transpose(x)); },
       {"%2 is made of %0", "%2 is read in the layout of %3", "%3 is worked on"}},
      {"slice",
       [](Builder& b, ValueId, ValueId x, ValueId) {
         b.slice(x, {8, 0}, {8, 16});
       },
       {"%2 is made of %0"}},
      {"concat",
       [](Builder& b, ValueId, ValueId x, ValueId y) {
         b.unary(Fn::kNeg, b.concat(std::vector{x, y}, 0));
       },
       {"%2 is made of %0", "%2 is made of %1", "%2 is read in the layout of %3",
        "%3 is worked on"}},
      {"permute",
       [](Builder& b, ValueId, ValueId x, ValueId) {
         b.permute(x, {8, 7, 6, 5, 4, 3, 2, 1, 0}, {16, 32});
       },
       {"%2 is made of %0"}},
      {"broadcast",
       [](Builder& b, ValueId, ValueId x, ValueId) {
         b.broadcast(b.slice(x, {0, 0}, {1, 16}), {4, 16});
       },
       {"%2 is made of %0", "%3 is made of %2"}},
      {"reduce",
       [](Builder& b, ValueId, ValueId x, ValueId) { b.reduce(Fn::kAdd, x, 1); },
       {"%2 is made of %0"}},
      {"reduce to one element",
       [](Builder& b, ValueId, ValueId x, ValueId) { b.reduce(Fn::kAdd, b.reshape(x, {512}), 0); },
       {"%2 is made of %0", "%2 is worked on"}},
      {"lookup",
       [](Builder& b, ValueId, ValueId x, ValueId) {
         ValueId table = b.table(DType::kF32, std::vector<double>(16, 1.0));
         b.lookup(table, b.cast(x, DType::kU8));
       },
       {"%2 is worked on", "%0 is read in the layout of %3", "%3 is worked on",
        "%3 is read in the layout of %4", "%4 is worked on"}},
      {"gather",
       [](Builder& b, ValueId buffer, ValueId x, ValueId y) {
         ValueId at = b.cast(x, DType::kI32);
         b.gather(buffer, b.index(0), at, b.less(x, y));
       },
       {"%0 is read in the layout of %2", "%2 is worked on", "%0 is read in the layout of %3",
        "%1 is read in the layout of %3", "%3 is worked on", "%2 is read in the layout of %4",
        "%3 is read in the layout of %4", "%4 is worked on"}},
      {"scatter",
       [](Builder& b, ValueId buffer, ValueId x, ValueId y) {
         b.scatter(buffer, b.index(0), b.cast(x, DType::kI32), y);
       },
       {"%0 is read in the layout of %2", "%2 is worked on", "%2 is read in the layout of %1",
        "%1 is worked on"}},
      {"store",
       [](Builder& b, ValueId buffer, ValueId x, ValueId) {
         b.store({buffer, b.index(0)}, x);
       },
       {"%0 is worked on"}},
      {"plain dot",
       [](Builder& b, ValueId, ValueId x, ValueId y) {
         ValueId sums = b.constant(DType::kF32, 0, {32, 32});
         b.dot(sums, x, b.transpose(y));
       },
       {"%2 is worked on", "%3 is made of %1", "%2 is read in the layout of %4", "%4 is made of %0",
        "%4 is made of %3", "%4 is worked on"}},
      {"dot of integers",
       [](Builder& b, ValueId, ValueId x, ValueId y) {
         ValueId sums = b.integer_constant(DType::kI32, 0, {32, 32});
         ValueId left = b.cast(x, DType::kI8);
         b.dot_i8(sums, left, b.cast(y, DType::kI8));
       },
       {"%2 is worked on", "%0 is read in the layout of %3", "%3 is worked on",
        "%1 is read in the layout of %4", "%4 is worked on", "%2 is read in the layout of %5",
        "%5 is made of %3", "%5 is made of %4", "%5 is worked on"}},
      {"loop",
       [](Builder& b, ValueId, ValueId x, ValueId y) {
         b.loop(b.index(0), b.index(4), b.index(1), {x},
                [&](ValueId, std::span<const ValueId>) { return std::vector{y}; });
       },
       {"%4 lies as %2", "%0 is read in the layout of %4", "%1 is read in the layout of %4"}},
      {"branch",
       [](Builder& b, ValueId, ValueId x, ValueId y) {
         b.branch(
             b.less(b.task(), b.index(1)), [&] { return std::vector{x}; },
             [&] { return std::vector{y}; });
       },
       {"%1 is read in the layout of %4", "%2 is read in the layout of %4"}},
  };
  return all;
}

TEST(LayoutRulesTest, EveryOperationAsksForWhatItNeeds) {
  for (const Case& one : cases()) {
    Builder b("rule");
    ValueId buffer = b.buffer("x", DType::kF32), zero = b.index(0);
    ValueId x = b.load({buffer, zero}, {32, 16}), y = b.load({buffer, zero}, {32, 16});
    one.write(b, buffer, x, y);
    Strings found = constraints_in(b.finish());
    ASSERT_GE(found.size(), 2u);
    EXPECT_EQ(Strings(found.begin() + 2, found.end()), one.expected) << one.name;
  }
}

TEST(LayoutRulesTest, ProductsOfHalvesTakeFragments) {
  Builder b("halves");
  ValueId buffer = b.buffer("x", DType::kF16), zero = b.index(0);
  ValueId left = b.load({buffer, zero}, {64, 16}), right = b.load({buffer, zero}, {16, 64});
  b.dot(b.constant(DType::kF32, 0, {64, 64}), left, right);
  Strings found = constraints_in(b.finish());
  EXPECT_EQ(found[4], "%3 is mma[64,64] warps 2x2 or mma[64,64] warps 4x1");
}

// Their operands come into shared memory from where they are, turned or side by side.
TEST(LayoutRulesTest, ProductsLookThroughWhatIsMadeForThemAlone) {
  Builder b("through");
  ValueId buffer = b.buffer("x", DType::kF16), zero = b.index(0);
  ValueId left = b.load({buffer, zero}, {64, 32}), right = b.load({buffer, zero}, {64, 16});
  ValueId sums = b.constant(DType::kF32, 0, {64, 64});
  b.dot(sums, left, b.transpose(b.concat(std::vector{right, right}, 1)));
  Strings found = constraints_in(b.finish());
  EXPECT_EQ(
      Strings(found.begin() + 5, found.end()),
      (Strings{"%5 is made of %0", "%5 is made of %1", "%5 is made of %1", "%5 is worked on"}));
}

TEST(LayoutRulesTest, ProductsOfStagesDictateLayoutsAndSizes) {
  for (const Sample& sample : pipeline_samples()) {
    if (!sample.name.starts_with("packed")) continue;
    System system = constraints_of(sample.kernel, sample.threads);
    int fixed = 0, divided = 0;
    for (const Constraint& constraint : system.constraints) {
      fixed += constraint.kind == Constraint::Kind::kOneOf;
      divided += constraint.kind == Constraint::Kind::kDivides;
    }
    EXPECT_EQ(fixed % 2, 0) << sample.name;  // sums, and the operand that is in registers
    EXPECT_GE(fixed, 2) << sample.name;
    EXPECT_EQ(divided, fixed / 2 * 3) << sample.name;
  }
}

// What happens in a loop counts more.
TEST(LayoutRulesTest, LoopsMultiplyPrices) {
  Builder b("often");
  ValueId buffer = b.buffer("x", DType::kF32), zero = b.index(0);
  ValueId x = b.load({buffer, zero}, {64});
  b.loop(zero, b.index(4), b.index(1), {x}, [&](ValueId, std::span<const ValueId> carried) {
    return std::vector{b.add(carried[0], x)};
  });
  Kernel kernel = b.finish();
  System system = constraints_of(kernel, 64);
  for (const Constraint& constraint : system.constraints) {
    bool inside = constraint.op->op == Op::kBinary;
    if (constraint.op->op == Op::kFor) continue;
    EXPECT_EQ(constraint.times, inside ? 8 : 1);
  }
}

}  // namespace
}  // namespace tenon::codegen
