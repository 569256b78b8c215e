#include "codegen/tile/product_loops.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "codegen/tile/content.h"
#include "codegen/tile/text.h"
#include "codegen/tile/verify.h"
#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

using Values = std::vector<ValueId>;
constexpr int kRows = 8, kColumns = 16, kK = 12;

// y = end(a x b), eight rows a task.
Kernel product(const std::string& name, const std::function<ValueId(Builder&, ValueId)>& end,
               int64_t k = kK) {
  Builder b(name);
  ValueId a = b.buffer("a", DType::kF32), weight = b.buffer("weight", DType::kF32);
  ValueId y = b.buffer("y", DType::kF32);
  ValueId sums = b.alloc(DType::kF32, kRows * kColumns);
  b.store({sums, b.index(0)}, b.constant(DType::kF32, 0, {kRows, kColumns}));
  ValueId first = b.mul(b.task(), b.index(kRows * k));
  b.loop({b.index(0), b.index(k), b.index(4)}, {}, [&](ValueId at, auto) -> Values {
    ValueId left = b.load({a, b.add(first, at), {b.index(k), b.index(1)}, {}}, {kRows, 4});
    ValueId right = b.load({weight, b.mul(at, b.index(kColumns))}, {4, kColumns});
    ValueId sum = b.load({sums, b.index(0)}, {kRows, kColumns});
    b.store({sums, b.index(0)}, b.dot(sum, left, right));
    return {};
  });
  ValueId result = end(b, b.load({sums, b.index(0)}, {kRows, kColumns}));
  b.store({y, b.mul(b.task(), b.index(kRows * kColumns))}, result);
  return b.finish();
}

ValueId as_is(Builder&, ValueId x) { return x; }
ValueId doubled(Builder& b, ValueId x) { return b.add(x, x); }

TEST(ProductLoopsTest, WhatStandsAroundALoopDoesNotTellItApart) {
  const Kernel plain = product("plain", as_is), other = product("other", doubled);
  const Kernel longer = product("longer", as_is, 2 * kK);
  const auto content = [](const Kernel& kernel) {
    const std::vector<ProductLoop> loops = product_loops(kernel);
    EXPECT_EQ(loops.size(), 1u);
    EXPECT_TRUE(verify(loops[0].kernel)) << print(loops[0].kernel);
    EXPECT_EQ(loops[0].arguments.size(), loops[0].kernel.parameters.size());
    return content_of(loops[0].kernel);
  };
  EXPECT_EQ(content(plain), content(other));
  EXPECT_NE(content(plain), content(longer));
}

TEST(ProductLoopsTest, NeedsNoTilesFromAroundItAndEnoughWork) {
  const auto loops_of = [](int rows, bool carries) {
    Builder b("kernel");
    ValueId a = b.buffer("a", DType::kF32), y = b.buffer("y", DType::kF32);
    ValueId n = b.index_parameter("n");
    ValueId scale = b.load({a, b.index(0)}, {rows, 16});
    b.loop({b.index(0), n, b.index(4)}, {}, [&](ValueId at, auto) -> Values {
      ValueId start = carries ? scale : b.load({y, at}, {rows, 16});
      ValueId left = b.load({a, at}, {rows, 4}), right = b.load({a, at}, {4, 16});
      b.store({y, at}, b.dot(start, left, right));
      return {};
    });
    return product_loops(b.finish()).size();
  };
  EXPECT_EQ(loops_of(8, false), 1u);
  EXPECT_EQ(loops_of(8, true), 0u);
  EXPECT_EQ(loops_of(1, false), 0u);
}

// Alone each has its loop; together they call one function, to the same bits.
TEST(ProductLoopsTest, KernelsThatShareOneGiveTheSameBits) {
  const std::vector<Kernel> kernels{product("plain", as_is), product("other", doubled),
                                    product("longer", as_is, 2 * kK)};
  const auto together = compile_host(kernels, detect_host());
  std::vector<float> a(2 * kRows * 2 * kK), weight(2 * kK * kColumns);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 7) - 2.7f;
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i % 11) / 3.0f;
  for (const Kernel& kernel : kernels) {
    std::vector<float> alone(2 * kRows * kColumns), shared(alone.size());
    HostKernel{kernel}({a.data(), weight.data(), alone.data()}, {}, 2);
    void* buffers[] = {a.data(), weight.data(), shared.data()};
    together->function(kernel.name)(buffers, nullptr, 0, 2);
    EXPECT_EQ(alone, shared) << kernel.name;
    EXPECT_NE(alone, std::vector<float>(alone.size()));
  }
}

}  // namespace
}  // namespace tenon::codegen
