// Loops, branches and index arithmetic.
#include <gtest/gtest.h>

#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

using Values = std::vector<ValueId>;

TEST(ControlTest, NestedLoopsCarryTilesAndIndices) {
  Builder b("nested");
  ValueId y = b.buffer("y", DType::kF32), n = b.index_parameter("n");
  ValueId zero = b.constant(DType::kF32, 0, {2, 7});
  auto outer = b.loop(b.index(0), n, b.index(1), {zero, b.index(0)},
                      [&](ValueId i, std::span<const ValueId> in) -> Values {
                        auto inner = b.loop(i, n, b.index(2), {in[0], in[1]},
                                            [&](ValueId j, std::span<const ValueId> at) -> Values {
                                              ValueId step = b.from_index(j, DType::kF32);
                                              return {b.add(at[0], step), b.add(at[1], b.index(1))};
                                            });
                        return {inner[0], inner[1]};
                      });
  b.store({y, b.index(0)}, outer[0]);
  b.store({y, b.index(14)}, b.from_index(outer[1], DType::kF32));
  HostKernel kernel(b.finish());
  for (int64_t count : {0, 1, 5, 8}) {
    float sum = 0, trips = 0;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = i; j < count; j += 2) sum += static_cast<float>(j), ++trips;
    }
    std::vector<float> out(15, -1);
    kernel({out.data()}, {count});
    for (int i = 0; i < 14; ++i) EXPECT_EQ(out[i], sum);
    EXPECT_EQ(out[14], trips);
  }
}

TEST(ControlTest, CarriedValuesMayTradePlaces) {
  Builder b("swap");
  ValueId y = b.buffer("y", DType::kI32), n = b.index_parameter("n");
  auto pair =
      b.loop(b.index(0), n, b.index(1),
             {b.integer_constant(DType::kI32, 1, {4}), b.integer_constant(DType::kI32, 2, {4})},
             [](ValueId, std::span<const ValueId> in) -> Values {
               return {in[1], in[0]};
             });
  b.store({y, b.index(0)}, pair[0]);
  HostKernel kernel(b.finish());
  std::vector<int32_t> out(4);
  kernel({out.data()}, {3});
  EXPECT_EQ(out[0], 2);
  kernel({out.data()}, {4});
  EXPECT_EQ(out[0], 1);
}

TEST(ControlTest, BranchesYieldAndHaveEffects) {
  Builder b("branch");
  ValueId y = b.buffer("y", DType::kF32), n = b.index_parameter("n");
  auto chosen = b.branch(
      b.less(n, b.index(10)),
      [&]() -> Values {
        return {b.constant(DType::kF32, 1, {5}), n};
      },
      [&]() -> Values {
        auto inner = b.branch(
            b.equal(n, b.index(10)), [&]() -> Values { return {b.constant(DType::kF32, 2, {5})}; },
            [&]() -> Values { return {b.constant(DType::kF32, 3, {5})}; });
        return {inner[0], b.index(7)};
      });
  b.store({y, b.index(0)}, chosen[0]);
  b.branch(b.equal(chosen[1], b.index(7)), [&]() -> Values {
    b.store({y, b.index(5)}, b.constant(DType::kF32, 9));
    return {};
  });
  HostKernel kernel(b.finish());
  for (auto [count, value, touched] :
       {std::tuple{3, 1, false}, {7, 1, true}, {10, 2, true}, {11, 3, true}}) {
    std::vector<float> out(6, -1);
    kernel({out.data()}, {count});
    for (int i = 0; i < 5; ++i) EXPECT_EQ(out[i], value) << count;
    EXPECT_EQ(out[5], touched ? 9 : -1) << count;
  }
}

TEST(ControlTest, IndexArithmetic) {
  Builder b("indices");
  ValueId y = b.buffer("y", DType::kI64), x = b.buffer("x", DType::kI32);
  ValueId p = b.index_parameter("p"), q = b.index_parameter("q");
  ValueId loaded = b.index_from(b.load({x, b.index(0)}, {}));
  const Values results{b.add(p, q), b.sub(p, q), b.mul(p, q), b.div(p, q),
                       b.rem(p, q), b.min(p, q), b.max(p, q), b.select(b.less(p, q), p, q),
                       loaded,      b.task()};
  for (size_t i = 0; i < results.size(); ++i) {
    b.store({y, b.index(static_cast<int64_t>(i))}, b.from_index(results[i], DType::kI64));
  }
  HostKernel kernel(b.finish());
  std::vector<int64_t> out(10);
  int32_t negative = -42;
  kernel({out.data(), &negative}, {1000000007, 13}, 3);
  EXPECT_EQ(out, (std::vector<int64_t>{1000000020, 999999994, 13000000091, 76923077, 6, 13,
                                       1000000007, 13, -42, 2}));
}

TEST(ControlTest, TaskRangesAreHonoured) {
  Builder b("tasks");
  ValueId y = b.buffer("y", DType::kI64);
  b.store({y, b.task()}, b.from_index(b.task(), DType::kI64));
  Kernel kernel = b.finish();
  auto code = compile_host(std::span(&kernel, 1), detect_host());
  std::vector<int64_t> out(10, -1);
  void* buffers[] = {out.data()};
  code->function("tasks")(buffers, nullptr, 3, 6);
  EXPECT_EQ(out, (std::vector<int64_t>{-1, -1, -1, 3, 4, 5, -1, -1, -1, -1}));
  code->function("tasks")(buffers, nullptr, 6, 6);
  EXPECT_EQ(out[6], -1);
}

// What shapes that are known leave: loops that run once or never, and sides that nobody takes.
TEST(ControlTest, WhatIsKnownToRunOnceOrNeverHasNoBranches) {
  Builder b("known");
  ValueId y = b.buffer("y", DType::kI32);
  const auto count = [&](int64_t lo, int64_t hi, int64_t step, ValueId from) {
    return b.loop(b.index(lo), b.index(hi), b.index(step), {from},
                  [&](ValueId at, std::span<const ValueId> in) -> Values {
                    ValueId seen = b.splat(b.from_index(b.add(at, b.index(1)), DType::kI32), {4});
                    return {b.add(in[0], seen)};
                  })[0];
  };
  ValueId sum = b.integer_constant(DType::kI32, 1, {4});
  sum = count(5, 5, 1, sum);    // never
  sum = count(9, 5, 2, sum);    // never
  sum = count(6, 10, 12, sum);  // once, with 6: 8
  const ValueId chosen = b.branch(
      b.less(b.index(1), b.min(b.index(2), b.index(7))), [&]() -> Values { return {sum}; },
      [&]() -> Values { return {count(0, 100, 1, sum)}; })[0];
  b.store({y, b.index(0)}, chosen);
  const Kernel kernel = b.finish();
  std::vector<int32_t> out(4);
  HostKernel{kernel}({out.data()});
  EXPECT_EQ(out, std::vector<int32_t>(4, 8));
  const std::string text = compile_to_text(kernel, detect_host(), "llvm");
  for (const char* block : {"\nfor", "\nend_for", "\nif", "\nend_if"}) {
    EXPECT_EQ(text.find(block), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tenon::codegen
