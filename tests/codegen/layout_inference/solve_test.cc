// Systems with and without a solution, and random kernels whose layouts are checked on their own.
#include "codegen/layout_inference/solve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>

#include "base/error.h"
#include "codegen/compile.h"
#include "codegen/tile/builder.h"
#include "tests/codegen/gpu_samples.h"

namespace tenon::codegen {
namespace {

using Kind = Constraint::Kind;

// Three tiles f32[64,32] in a row, with whatever constraints a test adds.
struct Chain {
  ValueId first = kNone, second = kNone, third = kNone;
  Kernel kernel;
  System system;

  static Kernel make(Chain& chain) {
    Builder b("chain");
    ValueId x = b.buffer("x", DType::kF32);
    chain.first = b.load({x, b.index(0)}, {64, 32});
    chain.second = b.unary(Fn::kNeg, chain.first);
    chain.third = b.unary(Fn::kAbs, chain.second);
    b.store({x, b.index(0)}, chain.third);
    return b.finish();
  }
  Chain() : kernel(make(*this)), system(constraints_of(kernel, 128)) {}

  void one_of(ValueId id, std::vector<Layout> layouts) {
    system.constraints.push_back({.kind = Kind::kOneOf,
                                  .a = id,
                                  .op = system.definitions[id],
                                  .layouts = std::move(layouts)});
  }
  void equals(ValueId a, ValueId b) {
    system.constraints.push_back(
        {.kind = Kind::kEquals, .a = a, .b = b, .op = system.definitions[b]});
  }
  Layout layout_of(ValueId id) const { return solve(system)[static_cast<size_t>(id)]; }
};

const Layout kSums = *Layout::sums({64, 32}, 128);
const Layout kDealt = Layout::dealt({64, 32}, 128);
const Layout kMma = Layout::mma({64, 32}, 128, /*rows_together=*/false);

TEST(LayoutSolverTest, NothingAskedNothingDone) {
  Chain chain;
  for (ValueId id : {chain.first, chain.second, chain.third}) {
    EXPECT_EQ(chain.layout_of(id), kDealt);
  }
}

TEST(LayoutSolverTest, OneFixedLayoutIsTakenByItsNeighbours) {
  Chain chain;
  chain.one_of(chain.second, {kSums});
  for (ValueId id : {chain.first, chain.second, chain.third}) {
    EXPECT_EQ(chain.layout_of(id), kSums);
  }
}

TEST(LayoutSolverTest, TheCheaperOfTwoWaysIsTaken) {
  Chain chain;
  chain.one_of(chain.first, {kMma, kSums});
  chain.one_of(chain.third, {kSums, kDealt});
  std::vector<Layout> layouts = solve(chain.system);
  EXPECT_EQ(layouts[static_cast<size_t>(chain.first)], kSums);
  EXPECT_EQ(layouts[static_cast<size_t>(chain.third)], kSums);
}

TEST(LayoutSolverTest, FarEndsMeetInARelayout) {
  Chain chain;
  chain.one_of(chain.first, {kDealt});
  chain.one_of(chain.third, {kSums});
  std::vector<Layout> layouts = solve(chain.system);
  EXPECT_EQ(layouts[static_cast<size_t>(chain.first)], kDealt);
  EXPECT_EQ(layouts[static_cast<size_t>(chain.third)], kSums);
  std::vector<Layout> other = layouts;
  for (const Layout& layout : {kDealt, kSums, kMma}) {
    other[static_cast<size_t>(chain.second)] = layout;
    EXPECT_LE(*price_of(chain.system, layouts), *price_of(chain.system, other));
  }
}

TEST(LayoutSolverTest, EqualTilesShareTheWaysOfBoth) {
  Chain chain;
  chain.equals(chain.first, chain.third);
  chain.one_of(chain.first, {kMma, kSums});
  chain.one_of(chain.third, {kDealt, kSums});
  EXPECT_EQ(chain.layout_of(chain.first), kSums);
  EXPECT_EQ(chain.layout_of(chain.third), kSums);
  EXPECT_TRUE(unsatisfied_core(chain.system).empty());
}

std::string complaint(const System& system) {
  try {
    solve(system);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(LayoutSolverTest, AContradictionIsToldWithoutWhatDoesNotBelongToIt) {
  Chain chain;
  chain.one_of(chain.second, {kMma});  // has nothing to do with it
  chain.one_of(chain.first, {kSums});
  chain.equals(chain.first, chain.third);
  chain.one_of(chain.third, {kDealt});
  EXPECT_EQ(unsatisfied_core(chain.system).size(), 3u);
  EXPECT_EQ(complaint(chain.system),
            "kernel @chain: no layout of its tiles over 128 threads obeys all of these; change a "
            "tile's size or the number of threads:\n"
            "  %0 is " +
                kSums.text() +
                ": %0 = load %x[0] strides(32, 1) : f32[64,32]\n"
                "  %0 lies as %2: %2 = abs %1 : f32[64,32]\n"
                "  %2 is " +
                kDealt.text() + ": %2 = abs %1 : f32[64,32]");
}

TEST(LayoutSolverTest, ASizeThatDoesNotDivideIsAContradictionOfItsOwn) {
  Chain chain;
  chain.one_of(chain.first, {kSums});
  chain.system.constraints.push_back({.kind = Kind::kDivides,
                                      .a = chain.second,
                                      .op = chain.system.definitions[chain.second],
                                      .axis = 0,
                                      .divisor = 24});
  EXPECT_TRUE(complaint(chain.system)
                  .ends_with(":\n  24 divides size 0 of %1 f32[64,32]: %1 = neg %0 : f32[64,32]"));
}

TEST(LayoutSolverTest, PricesArePrintedLineByLine) {
  Chain chain;
  chain.one_of(chain.second, {kSums});
  std::vector<Layout> layouts = solve(chain.system);
  EXPECT_EQ(priced(chain.system, layouts),
            "       128  %0 is worked on: %0 = load %x[0] strides(32, 1) : f32[64,32]\n"
            "         0  %0 is read in the layout of %1: %1 = neg %0 : f32[64,32]\n"
            "       128  %1 is worked on: %1 = neg %0 : f32[64,32]\n"
            "         0  %1 is read in the layout of %2: %2 = abs %1 : f32[64,32]\n"
            "       128  %2 is worked on: %2 = abs %1 : f32[64,32]\n"
            "       128  %2 is worked on: store %x[0], %2 strides(32, 1) : f32[64,32]\n"
            "      must  %1 is " +
                kSums.text() +
                ": %1 = neg %0 : f32[64,32]\n"
                "       512  in all\n");
}

// ---- kernels

// What the emitter relies on, read off the operations.
void expect_usable(const Kernel& kernel, int threads, const std::vector<Layout>& layouts) {
  std::vector<const Operation*> definitions = definitions_of(kernel);
  for (size_t id = 0; id < layouts.size(); ++id) {
    const Type& type = kernel.types[id];
    if (type.kind != Type::Kind::kTile) continue;
    ASSERT_EQ(layouts[id].threads, threads);
    ASSERT_EQ(layouts[id].elements(), type.elements()) << layouts[id].text();
    ASSERT_EQ(layouts[id].kind == Layout::Kind::kUniform, type.shape.empty());
    const Operation* op = definitions[id];
    if (!op) continue;
    if (op->op == Op::kDot && is_tensor_core_dot(kernel, *op)) {
      auto ring = ring_dot(kernel, definitions, *op, threads);
      if (!ring) {
        ASSERT_TRUE(layouts[id].is_mma());
      } else {
        ASSERT_EQ(layouts[id], Layout::sums(type.shape, threads));
        ValueId left = op->operands[1];
        if (!ring->left) {
          ASSERT_EQ(layouts[static_cast<size_t>(left)],
                    Layout::left_operand(kernel.types[left].shape, threads));
        }
      }
    }
    bool carries = op->op == Op::kFor || op->op == Op::kPipeline;
    if (!carries) continue;
    const Region& body = op->regions[op->op == Op::kFor ? 0 : 1];
    for (size_t i = 0; i < op->results.size(); ++i) {
      size_t argument = body.arguments.size() - op->results.size() + i;
      ASSERT_EQ(layouts[static_cast<size_t>(op->results[i])],
                layouts[static_cast<size_t>(body.arguments[argument])]);
    }
  }
}

// No tile that may lie otherwise would be cheaper where it alone is dealt, or lies as another one.
void expect_no_easy_gain(const System& system, const std::vector<Layout>& layouts) {
  int64_t price = price_of(system, layouts).value();
  for (size_t id = 0; id < layouts.size(); ++id) {
    std::vector<Layout> other = layouts;
    other[id] = Layout::dealt(system.kernel.types[id].shape, system.threads);
    ASSERT_LE(price, price_of(system, other).value_or(price)) << layouts[id].text();
  }
}

// Elementwise operations, moves, reductions and products of what is there already.
class RandomKernel {
 public:
  explicit RandomKernel(unsigned seed) : random_(seed), b_("random") {
    f16_ = b_.buffer("h", DType::kF16);
    f32_ = b_.buffer("f", DType::kF32);
    zero_ = b_.index(0);
    steps(4 + below(12));
    if (below(2)) wrap_in_loop();
    steps(below(6));
    for (ValueId id : tiles_) {
      if (below(3) == 0) keep(id);
    }
    keep(tiles_.back());
  }
  Kernel finish() { return b_.finish(); }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  int size() { return 16 << below(3); }
  ValueId any() { return tiles_[static_cast<size_t>(below(static_cast<int>(tiles_.size())))]; }
  const std::vector<int>& shape(ValueId id) const { return b_.type(id).shape; }
  ValueId of(DType dtype, std::vector<int> wanted) {
    for (ValueId id : tiles_) {
      if (b_.type(id) == Type::tile(dtype, wanted)) return id;
    }
    return b_.load({dtype == DType::kF16 ? f16_ : f32_, zero_}, wanted);
  }
  void keep(ValueId id) { b_.store({b_.type(id).dtype == DType::kF16 ? f16_ : f32_, zero_}, id); }

  void steps(int count) {
    for (int i = 0; i < count; ++i) tiles_.push_back(step());
  }

  ValueId step() {
    if (tiles_.empty() || below(5) == 0) return of(DType::kF32, {size(), size()});
    ValueId x = any();
    std::vector<int> now = shape(x);
    switch (below(9)) {
      case 0:
        return b_.unary(Fn::kNeg, x);
      case 1:
        return b_.add(x, of(b_.type(x).dtype, now));
      case 2:
        return b_.cast(x, b_.type(x).dtype == DType::kF32 ? DType::kF16 : DType::kF32);
      case 3:
        return now.size() == 2 ? b_.transpose(x) : b_.reshape(x, {1, now[0]});
      case 4:
        return now.size() == 2 ? b_.reshape(x, {now[0] * now[1]}) : b_.reshape(x, {now[0], 1});
      case 5: {
        if (now.size() < 2 || now[0] == 1 || now[1] == 1) return x;
        ValueId sums = b_.reduce(Fn::kAdd, x, below(2));
        bool of_rows = shape(sums)[0] == now[0];
        ValueId turned = of_rows ? b_.reshape(sums, {now[0], 1}) : sums;
        return b_.type(turned).shape.size() == 1 && now[1] != shape(turned)[0]
                   ? sums
                   : b_.broadcast(turned, now);
      }
      case 6: {
        int bits = std::countr_zero(static_cast<unsigned>(b_.type(x).elements()));
        std::vector<int64_t> order(static_cast<size_t>(bits));
        std::iota(order.begin(), order.end(), 0);
        std::ranges::shuffle(order, random_);
        return b_.permute(x, order, now);
      }
      case 7:
        return now.size() == 2 && b_.type(x).elements() <= 4096
                   ? b_.concat(std::vector{x, of(b_.type(x).dtype, now)}, below(2))
                   : x;
      default: {
        if (now.size() < 2 || now[0] == 1 || now[1] == 1) return x;
        int columns = size();
        ValueId left = b_.type(x).dtype == DType::kF16 ? x : b_.cast(x, DType::kF16);
        ValueId sums = below(2) ? of(DType::kF32, {now[0], columns})
                                : b_.constant(DType::kF32, 0, {now[0], columns});
        return b_.dot(sums, left, of(DType::kF16, {now[1], columns}));
      }
    }
  }

  void wrap_in_loop() {
    ValueId start = any();
    ValueId result = b_.loop(
        zero_, b_.index(3), b_.index(1), {start}, [&](ValueId, std::span<const ValueId> carried) {
          std::vector<ValueId> outside = tiles_;
          tiles_.push_back(carried[0]);
          steps(3);
          ValueId last = tiles_.back();
          bool fits = b_.type(last) == b_.type(start);
          ValueId next = fits ? b_.add(last, carried[0]) : b_.unary(Fn::kNeg, carried[0]);
          tiles_ = outside;
          return std::vector{next};
        })[0];
    tiles_.push_back(result);
  }

  std::mt19937 random_;
  Builder b_;
  ValueId f16_, f32_, zero_;
  std::vector<ValueId> tiles_;
};

TEST(LayoutSolverTest, RandomKernelsGetLayoutsThatObey) {
  int products = 0;
  for (unsigned seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    Kernel kernel = RandomKernel(seed).finish();
    int threads = 32 << seed % 4;
    System system = constraints_of(kernel, threads);
    std::vector<Layout> layouts = solve(system);
    expect_usable(kernel, threads, layouts);
    expect_no_easy_gain(system, layouts);
    products += std::ranges::count_if(layouts, &Layout::is_mma) > 0;
    if (seed % 10 == 0) {
      EXPECT_NO_THROW(compile_gpu(kernel, threads, GpuTarget{}));
    }
  }
  EXPECT_GT(products, 40);
}

TEST(LayoutSolverTest, KernelsGetLayoutsThatObey) {
  std::vector<Sample> all = representative_samples();
  for (Sample& sample : pipeline_samples()) all.push_back(std::move(sample));
  for (const Sample& sample : all) {
    SCOPED_TRACE(sample.name);
    System system = constraints_of(sample.kernel, sample.threads);
    std::vector<Layout> layouts = solve(system);
    expect_usable(sample.kernel, sample.threads, layouts);
    expect_no_easy_gain(system, layouts);
  }
}

// Queries stay as operands in registers while blocks of keys go by.
TEST(LayoutSolverTest, WhatALoopMultipliesAgainAndAgainStaysInRegisters) {
  Builder b("queries");
  ValueId x = b.buffer("x", DType::kF16), y = b.buffer("y", DType::kF32), zero = b.index(0);
  ValueId queries = b.load({x, zero}, {64, 64});
  ValueId sums = b.loop(zero, b.index(16), b.index(1), {b.constant(DType::kF32, 0, {64, 64})},
                        [&](ValueId step, std::span<const ValueId> carried) {
                          ValueId keys = b.load({x, step}, {64, 64});
                          return std::vector{b.dot(carried[0], queries, keys)};
                        })[0];
  b.store({y, zero}, sums);
  Kernel kernel = b.finish();
  std::vector<Layout> layouts = assign_layouts(kernel, 128);
  EXPECT_EQ(layouts[static_cast<size_t>(queries)], Layout::mma({64, 64}, 128, true));
  EXPECT_EQ(layouts[static_cast<size_t>(sums)], Layout::mma({64, 64}, 128, true));
}

}  // namespace
}  // namespace tenon::codegen
