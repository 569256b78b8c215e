#include "graph_partitioner/passes/host_time.h"

#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "graph_partitioner/ir/extract.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"

namespace tenon {
namespace {

constexpr int64_t kSmall = 1, kLarge = 64;

// Ours over stock kernels', for the nodes of these sources.
double ratio(const ir::Graph& whole, const std::vector<int>& sources, int64_t size) {
  const ir::Graph cut = ir::extract(whole, sources);
  const HostTime time = host_time(whole, cut, fuse(cut), size);
  return time.ours / time.stock;
}

ir::Graph chain(int ops) {
  std::string text = "graph main {\n input %x0: f32[n,256]\n";
  for (int i = 0; i < ops; ++i) {
    text += fmt::format(" %x{}: f32[n,256] = Mul@14(%x{}, %x0) sources=[{}]\n", i + 1, i, i);
  }
  return ir::parse(text + fmt::format(" output %x{}\n}}", ops));
}

TEST(HostTime, EveryNodeInOneLoopSavesACallAndAPass) {
  EXPECT_GT(ratio(chain(1), {0}, kSmall), 1.0);
  EXPECT_LT(ratio(chain(4), {0, 1, 2, 3}, kSmall), 0.8);
  EXPECT_LT(ratio(chain(4), {0, 1, 2, 3}, kLarge), 0.6);
}

// y = gelu-like tail of x * w, rows by k by n.
ir::Graph product(int64_t k, int64_t n) {
  return ir::parse(
      fmt::format("graph main {{\n input %x: f32[rows,{0}]\n const %w: f32[{0},{1}] = hex:{2}\n"
                  " %m: f32[rows,{1}] = MatMul@13(%x, %w) sources=[0]\n"
                  " %a: f32[rows,{1}] = Mul@14(%m, %m) sources=[1]\n"
                  " %b: f32[rows,{1}] = Add@14(%a, %m) sources=[2]\n"
                  " %y: f32[rows,{1}] = Mul@14(%b, %a) sources=[3]\n output %y\n}}",
                  k, n, std::string(2 * 4 * k * n, '0')));
}

TEST(HostTime, APlainProductGainsByWhatIsAroundItUntilItIsDeep) {
  EXPECT_LT(ratio(product(32, 64), {0, 1, 2, 3}, kLarge), 1.0);
  EXPECT_GT(ratio(product(4096, 64), {0, 1, 2, 3}, kLarge), 1.0);
}

// y = x * w, and a chain behind it that gains.
ir::Graph product_and_chain(int64_t k, int64_t n, int ops) {
  std::string text = fmt::format(
      "graph main {{\n input %x: f32[rows,{0}]\n const %w: f32[{0},{1}] = hex:{2}\n"
      " %t0: f32[rows,{1}] = MatMul@13(%x, %w) sources=[0]\n",
      k, n, std::string(2 * 4 * k * n, '0'));
  for (int i = 0; i < ops; ++i) {
    text += fmt::format(" %t{0}: f32[rows,{1}] = Mul@14(%t{2}, %t0) sources=[{0}]\n", i + 1, n, i);
  }
  return ir::parse(text + fmt::format(" output %t{}\n}}", ops));
}

// A row or a few take as long as the weights take to come from memory.
TEST(HostTime, WeightsThatNoCacheHoldsCostTheirReading) {
  constexpr int kOps = 16;
  std::vector<int> all(kOps + 1);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_LT(ratio(product_and_chain(256, 512, kOps), all, kSmall), 1.0);
  EXPECT_GT(ratio(product_and_chain(1024, 1536, kOps), all, kSmall), 1.1);
}

// A vector for each of a batch of matrices.
TEST(HostTime, AFewColumnsCostAsManyAsOneVector) {
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[n,64,64]
  input %v: f32[n,64,1]
  %y: f32[n,64,1] = MatMul@13(%x, %v) sources=[0]
  output %y
})");
  EXPECT_GT(ratio(graph, {0}, kLarge), 4.0);
}

// With 32 for both, rows of 64 and of 32 would be added.
TEST(HostTime, ASizeThatDoesNotFitTheGraphIsNoError) {
  const ir::Graph graph = ir::parse(R"(graph main {
  input %v: f32[a,b]
  input %x: f32[a,c]
  %d: f32[a,2*b] = Concat@13(%v, %v) {axis=1} sources=[0]
  %s: f32[a,c] = Add@14(%d, %x) sources=[1]
  %t: f32[a,c] = Mul@14(%s, %x) sources=[2]
  %y: f32[a,c] = Sub@14(%t, %s) sources=[3]
  output %y
})");
  EXPECT_LT(ratio(graph, {0, 1, 2, 3}, 32), 1.0);
}

// Five ops of the file are one node of the runtime's.
TEST(HostTime, AGeluThatIsSpelledIsOneNodeOfTheRuntimes) {
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[n,256]
  const %c: f32[] = hex:f304b53f
  const %one: f32[] = hex:0000803f
  const %half: f32[] = hex:0000003f
  %d: f32[n,256] = Div@14(%x, %c) sources=[0]
  %e: f32[n,256] = Erf@13(%d) sources=[1]
  %a: f32[n,256] = Add@14(%e, %one) sources=[2]
  %m: f32[n,256] = Mul@14(%x, %a) sources=[3]
  %y: f32[n,256] = Mul@14(%m, %half) sources=[4]
  output %y
})");
  EXPECT_GT(ratio(graph, {0, 1, 2, 3, 4}, kLarge), 0.9);
}

// Stock convolutions keep another layout, and fuse what stands behind them.
TEST(HostTime, WhatStandsBetweenConvolutionsIsReadAndWrittenOnceMore) {
  const std::string chain = R"(
  %a: f32[1,8,h,h] = Relu@14(%x) sources=[1]
  %b: f32[1,8,h,h] = Mul@14(%a, %x) sources=[2]
  %c: f32[1,8,h,h] = Neg@13(%b) sources=[3]
  %y: f32[1,8,h,h] = Add@14(%c, %a) sources=[4]
)";
  const std::string weight =
      "graph main {\n input %i: f32[1,8,h,h]\n const %w: f32[8,8,1,1] = hex:" +
      std::string(2 * 4 * 64, '0') + "\n";
  const ir::Graph between =
      ir::parse(weight + "%x: f32[1,8,h,h] = Conv@11(%i, %w) sources=[0]\n" + chain +
                "%o: f32[1,8,h,h] = Conv@11(%y, %w) sources=[5]\n output %o\n}");
  const ir::Graph alone =
      ir::parse(weight + "%x: f32[1,8,h,h] = Neg@13(%i) sources=[0]\n" + chain + "output %y\n}");
  EXPECT_GT(ratio(between, {1, 2, 3, 4}, kLarge), 1.0);
  EXPECT_LT(ratio(alone, {1, 2, 3, 4}, kLarge), 0.7);
}

}  // namespace
}  // namespace tenon
