// Where elements lie, against what the definitions say when written down element by element.
#include "codegen/layouts.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "codegen/moves.h"
#include "codegen/tile/builder.h"
#include "tests/codegen/gpu_samples.h"

namespace tenon::codegen {
namespace {

const std::vector<std::vector<int>> kShapes = {{1},      {5},     {128},    {1000},
                                               {4096},   {1, 7},  {7, 1},   {3, 37},
                                               {16, 16}, {64, 8}, {33, 48}, {128, 64}};

// Every element is held, its first copy by one thread only, and no register holds one that is not.
void expect_complete(const Layout& layout) {
  std::map<int64_t, int> holders, first_copies;
  for (int thread = 0; thread < layout.threads; ++thread) {
    for (int reg = 0; reg < layout.registers(); ++reg) {
      int64_t element = layout.element_of(thread, reg);
      if (element < 0) continue;
      ASSERT_LT(element, layout.elements()) << layout.text();
      ++holders[element];
      first_copies[element] += layout.is_first_copy(thread, reg);
    }
  }
  ASSERT_EQ(static_cast<int64_t>(holders.size()), layout.elements()) << layout.text();
  for (auto [element, count] : first_copies) ASSERT_EQ(count, 1) << layout.text() << " " << element;
}

TEST(LayoutTest, EveryElementHasOneFirstCopy) {
  for (int threads : {32, 96, 128, 1024}) {
    for (const auto& shape : kShapes) {
      expect_complete(Layout::dealt(shape, threads));
      if (shape.size() < 2) continue;
      for (bool rows_together : {false, true}) {
        Layout mma = Layout::mma(shape, threads, rows_together);
        expect_complete(mma);
        expect_complete(mma.rows_of());
        expect_complete(mma.columns_of());
      }
    }
  }
}

TEST(LayoutTest, DealtRunsAreConsecutiveAndCyclic) {
  Layout layout = Layout::dealt({4096}, 128);
  EXPECT_EQ(layout.run, 8);
  EXPECT_EQ(layout.registers(), 32);
  EXPECT_EQ(layout.element_of(0, 7), 7);
  EXPECT_EQ(layout.element_of(1, 0), 8);
  EXPECT_EQ(layout.element_of(0, 8), 1024);
  EXPECT_EQ(Layout::dealt({300}, 128).run, 2);
  EXPECT_EQ(Layout::dealt({300}, 128).element_of(22, 2), -1);  // past the end
  EXPECT_EQ(Layout::dealt({5}, 32).element_of(7, 0), 2);       // a copy
}

TEST(LayoutTest, OneThingUnderTwoNamesIsTheSame) {
  Layout dealt = Layout::dealt({256, 4}, 256);
  Layout named = Layout::bits({256, 4}, 256, {2, 3, 4, 5, 6, 7, 8, 9}, {0, 1});
  Layout other = Layout::bits({256, 4}, 256, {2, 3, 4, 5, 6, 7, 8, 9}, {1, 0});
  EXPECT_NE(dealt, named);
  EXPECT_TRUE(dealt.same_as(named));
  EXPECT_FALSE(dealt.same_as(other));
  EXPECT_FALSE(dealt.same_as(Layout::dealt({256, 4}, 128)));
}

TEST(LayoutTest, DealtIgnoresTheShapeOfEqualSizes) {
  Layout flat = Layout::dealt({1024}, 64), square = Layout::dealt({32, 32}, 64);
  for (int thread = 0; thread < 64; ++thread) {
    for (int reg = 0; reg < flat.registers(); ++reg) {
      ASSERT_EQ(flat.element_of(thread, reg), square.element_of(thread, reg));
    }
  }
}

// The places of c0 … c3 as the instruction set defines them for m16n8.
TEST(LayoutTest, MmaFragmentsLieAsTheInstructionWants) {
  Layout layout = Layout::mma({32, 16}, 64, true);
  EXPECT_EQ(layout.warps_m, 2);
  EXPECT_EQ(layout.warps_n, 1);
  for (int thread = 0; thread < 64; ++thread) {
    int group = thread % 32 / 4, in_group = thread % 4;
    for (int fragment = 0; fragment < 2; ++fragment) {
      for (int c = 0; c < 4; ++c) {
        int row = thread / 32 * 16 + group + (c >= 2 ? 8 : 0);
        int column = fragment * 8 + in_group * 2 + c % 2;
        ASSERT_EQ(layout.element_of(thread, fragment * 4 + c), row * 16 + column);
      }
    }
  }
}

// A row's sum lies where the row's elements lie.
TEST(LayoutTest, RowsAndColumnsFollowTheirTile) {
  Layout mma = Layout::mma({64, 48}, 128, false), rows = mma.rows_of(), columns = mma.columns_of();
  for (int thread = 0; thread < 128; ++thread) {
    std::set<int64_t> held_rows, held_columns, of_rows, of_columns;
    for (int reg = 0; reg < mma.registers(); ++reg) {
      held_rows.insert(mma.element_of(thread, reg) / 48);
      held_columns.insert(mma.element_of(thread, reg) % 48);
    }
    for (int reg = 0; reg < rows.registers(); ++reg) of_rows.insert(rows.element_of(thread, reg));
    for (int reg = 0; reg < columns.registers(); ++reg) {
      of_columns.insert(columns.element_of(thread, reg));
    }
    ASSERT_EQ(held_rows, of_rows);
    ASSERT_EQ(held_columns, of_columns);
  }
}

TEST(LayoutTest, AssignmentFollowsProductsThroughLoops) {
  using Kind = Layout::Kind;
  Builder b("follow");
  ValueId x = b.buffer("x", DType::kF16), y = b.buffer("y", DType::kF32), zero = b.index(0);
  ValueId initial = b.constant(DType::kF32, 0, {64, 32});
  ValueId high = kNone, bias = kNone, scaled = kNone, a = kNone;
  ValueId sum = b.loop(zero, b.index(4), b.index(1), {initial},
                       [&](ValueId, std::span<const ValueId> carried) {
                         a = b.load({x, zero}, {64, 16});
                         ValueId c = b.load({x, zero}, {16, 32});
                         ValueId product = b.dot(carried[0], a, c);
                         high = b.reduce(Fn::kMax, product, 1);
                         ValueId column = b.broadcast(b.reshape(high, {64, 1}), {64, 32});
                         bias = b.load({y, zero}, {32});
                         scaled = b.add(b.sub(product, column), b.broadcast(bias, {64, 32}));
                         return std::vector{scaled};
                       })[0];
  b.store({y, zero}, sum);
  Kernel kernel = b.finish();
  std::vector<Layout> layouts = assign_layouts(kernel, 128);
  EXPECT_EQ(layouts[initial].kind, Kind::kSplat);  // the loop takes it in its own layout
  EXPECT_EQ(layouts[sum].kind, Kind::kMma);
  EXPECT_EQ(layouts[scaled].kind, Kind::kMma);
  EXPECT_EQ(layouts[high].kind, Kind::kRows);
  EXPECT_EQ(layouts[bias].kind, Kind::kColumns);
  EXPECT_EQ(layouts[a].kind, Kind::kDealt);
  EXPECT_EQ(layouts[sum], Layout::mma({64, 32}, 128, true));
}

// Sums of wgmma.m64nNk16, written down as the instruction set defines them.
TEST(LayoutTest, SumsLieAsWarpgroupProductsLeaveThem) {
  for (auto [rows, columns, threads] :
       {std::array{64, 8, 128}, {128, 64, 256}, {256, 32, 256}, {256, 16, 512}}) {
    Layout layout = Layout::sums({rows, columns}, threads).value();
    expect_complete(layout);
    int blocks = rows / 64 / (threads / 128), per_block = columns / 2;
    ASSERT_EQ(layout.registers(), blocks * per_block);
    for (int thread = 0; thread < threads; ++thread) {
      for (int reg = 0; reg < layout.registers(); ++reg) {
        int block = thread / 128 * blocks + reg / per_block, d = reg % per_block;
        int row = 64 * block + 16 * (thread / 32 % 4) + thread % 32 / 4 + 8 * (d / 2 % 2);
        int column = 8 * (d / 4) + 2 * (thread % 4) + d % 2;
        ASSERT_EQ(layout.element_of(thread, reg), row * columns + column) << layout.text();
      }
    }
  }
  EXPECT_FALSE(Layout::sums({32, 64}, 128));
  EXPECT_FALSE(Layout::sums({64, 24}, 128));
  EXPECT_FALSE(Layout::sums({64, 64}, 256));
  EXPECT_FALSE(Layout::sums({192, 64}, 384));
}

// Its left operand: words a0 … a3 hold (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8).
TEST(LayoutTest, LeftOperandLiesAsProductsReadIt) {
  for (auto [rows, threads] : {std::array{64, 128}, {128, 256}, {256, 256}}) {
    constexpr int kDepth = 64;
    Layout layout = Layout::left_operand({rows, kDepth}, threads).value();
    expect_complete(layout);
    int blocks = rows / 64 / (threads / 128);
    for (int thread = 0; thread < threads; ++thread) {
      for (int reg = 0; reg < layout.registers(); ++reg) {
        int block = thread / 128 * blocks + reg / 32, slice = reg / 8 % 4, word = reg / 2 % 4;
        int row = 64 * block + 16 * (thread / 32 % 4) + thread % 32 / 4 + 8 * (word % 2);
        int k = 16 * slice + 8 * (word / 2) + 2 * (thread % 4) + reg % 2;
        ASSERT_EQ(layout.element_of(thread, reg), row * kDepth + k);
      }
    }
  }
}

// Its right operand, computed: words b0, b1 hold (2t, g), (2t + 8, g) of 16 k and 8 columns. Each
// group of warps has columns of its own, or k.
TEST(LayoutTest, RightOperandLiesAsProductsReadIt) {
  for (bool groups_have_k : {false, true}) {
    for (auto [groups, threads] : {std::array{4, 128}, {2, 128}, {8, 256}}) {
      constexpr int kOwnK = 32, kOwnColumns = 16;
      int rows = groups_have_k ? kOwnK * groups : kOwnK;
      int columns = groups_have_k ? kOwnColumns : kOwnColumns * groups;
      Layout layout =
          Layout::right_operand({rows, columns}, threads, groups, groups_have_k).value();
      EXPECT_EQ(layout.registers(), kOwnK * kOwnColumns / kWarp);
      for (int thread = 0; thread < threads; ++thread) {
        int group = thread / kWarp / (threads / kWarp / groups);
        for (int reg = 0; reg < layout.registers(); ++reg) {
          int word = reg / 2 % 2, fragment = reg / 4 % 2, step = reg / 8;
          int k = 16 * step + 8 * word + 2 * (thread % 4) + reg % 2;
          int column = 8 * fragment + thread % 32 / 4;
          (groups_have_k ? k : column) += group * (groups_have_k ? kOwnK : kOwnColumns);
          ASSERT_EQ(layout.element_of(thread, reg), k * columns + column);
        }
      }
    }
  }
  EXPECT_FALSE(Layout::right_operand({8, 64}, 128, 4, false));
  EXPECT_FALSE(Layout::right_operand({64, 16}, 128, 4, false));
}

// What the algebra says of a move, against a look at every thread.
void expect_enumerated(const Kernel& kernel, const Operation& op,
                       const std::vector<Layout>& layouts) {
  auto solved = registers_of_move(kernel, op, layouts);
  auto seen = enumerate_registers_of_move(kernel, op, layouts);
  ASSERT_EQ(solved.has_value(), seen.has_value()) << name(op.op);
  for (size_t r = 0; solved && r < solved->size(); ++r) {
    EXPECT_EQ((*solved)[r].operand, (*seen)[r].operand) << name(op.op);
    EXPECT_EQ((*solved)[r].reg, (*seen)[r].reg) << name(op.op);
    EXPECT_EQ((*solved)[r].part, (*seen)[r].part) << name(op.op);
  }
}

// Whatever a move makes of a layout by bits, each register comes from one of the same thread.
TEST(LayoutTest, MovedLayoutsKeepElementsInTheirThreads) {
  Builder b("moves");
  ValueId x = b.buffer("x", DType::kU32), zero = b.index(0);
  ValueId words = b.load({x, zero}, {64, 32});
  std::vector<ValueId> results{
      b.transpose(words),
      b.reshape(words, {32, 64}),
      b.permute(words, {3, 1, 2, 0, 5, 4, 10, 9, 8, 7, 6}, {128, 16}),
      b.bitcast(words, DType::kF16),
      b.bitcast(words, DType::kU8),
      b.concat(std::vector{words, words}, 0),
      b.concat(std::vector{words, words, words, words}, 1),
      b.slice(words, {32, 8}, {32, 8}),
  };
  b.store({x, zero}, words);
  Kernel kernel = b.finish();
  std::vector<const Operation*> definitions = definitions_of(kernel);
  std::vector<Layout> layouts(kernel.types.size());
  layouts[words] = Layout::sums({64, 32}, 128).value();
  for (ValueId result : results) {
    const Operation& op = *definitions[result];
    auto to = moved_forward(kernel, op, layouts[words]);
    if (op.op == Op::kSlice) {  // rows 32 … 63 are with half of the warps
      EXPECT_FALSE(to);
      continue;
    }
    ASSERT_TRUE(to) << name(op.op);
    layouts[result] = *to;
    expect_complete(*to);
    EXPECT_TRUE(registers_of_move(kernel, op, layouts)) << name(op.op) << " " << to->text();
    expect_enumerated(kernel, op, layouts);
    layouts[result] = Layout::dealt(kernel.types[result].shape, 128);
    expect_enumerated(kernel, op, layouts);
    auto back = moved_backward(kernel, op, 0, *to);
    ASSERT_TRUE(back) << name(op.op);
    EXPECT_EQ(*back, layouts[words]) << name(op.op);
  }
}

// What a reduction in a warp leaves is what the lanes that combined it held the parts of.
TEST(LayoutTest, ReductionsOfSumsStayInTheirWarp) {
  Layout sums = Layout::sums({128, 32}, 256).value();
  auto rows = reduced_in_warp(sums, 1);
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->distances, (std::vector{1, 2}));
  for (int thread = 0; thread < 256; ++thread) {
    std::set<int64_t> held, reduced;
    for (int reg = 0; reg < sums.registers(); ++reg) held.insert(sums.element_of(thread, reg) / 32);
    for (int reg = 0; reg < rows->result.registers(); ++reg) {
      reduced.insert(rows->result.element_of(thread, reg));
    }
    ASSERT_EQ(held, reduced);
  }
  EXPECT_FALSE(reduced_in_warp(sums, 0)) << "other warps hold the other rows";
  EXPECT_FALSE(reduced_in_warp(Layout::dealt({128, 32}, 256), 1));
}

// From the words in a stage to the operand of the product: nothing changes threads, and the sums
// are turned in place.
TEST(LayoutTest, PackedWeightsAreDequantizedInPlace) {
  for (const Sample& sample : pipeline_samples()) {
    if (!sample.name.starts_with("packed")) continue;
    std::vector<Layout> layouts = assign_layouts(sample.kernel, sample.threads);
    std::vector<const Operation*> definitions = definitions_of(sample.kernel);
    int moves = 0;
    for (const Operation* op : definitions) {
      if (!op || !is_move(sample.kernel, *op)) continue;
      const Operation* from = definitions[op->operands[0]];
      if (op->op == Op::kTranspose && from && from->op == Op::kRead) continue;  // the right side
      ASSERT_TRUE(registers_of_move(sample.kernel, *op, layouts))
          << sample.name << ": " << name(op->op) << " from " << layouts[op->operands[0]].text()
          << " to " << layouts[op->results[0]].text();
      ++moves;
    }
    EXPECT_GE(moves, 10);
  }
}

// Equal elements take one register, unless somebody looks at where they lie.
TEST(LayoutTest, EqualElementsTakeOneRegister) {
  Builder b("splats");
  ValueId x = b.buffer("x", DType::kF32), zero = b.index(0);
  ValueId half = b.constant(DType::kF32, 0.5, {16, 16}), two = b.constant(DType::kF32, 2, {16, 16});
  ValueId one = b.mul(half, two), stored = b.add(one, one);
  ValueId sum = b.add(b.load({x, zero}, {16, 16}), one);
  b.store({x, zero}, stored);
  b.store({x, zero}, sum);
  std::vector<Layout> layouts = assign_layouts(b.finish(), 64);
  for (ValueId id : {half, two, one}) EXPECT_EQ(layouts[id], Layout::splat({16, 16}, 64));
  for (ValueId id : {stored, sum}) EXPECT_EQ(layouts[id], Layout::dealt({16, 16}, 64));
  EXPECT_EQ(layouts[one].registers(), 1);
  EXPECT_EQ(layouts[one].elements(), 256);
  EXPECT_EQ(layouts[one].text(), "splat[16,16]");
  EXPECT_FALSE(layouts[one].linear());
}

TEST(LayoutTest, WithoutTensorCoresEverythingIsDealt) {
  Builder b("plain");
  ValueId x = b.buffer("x", DType::kF32), zero = b.index(0);
  ValueId a = b.load({x, zero}, {16, 16});
  ValueId product = b.dot(a, a, a);
  ValueId total = b.reduce(Fn::kAdd, b.reduce(Fn::kAdd, product, 1), 0);
  b.store({x, zero}, total);
  std::vector<Layout> layouts = assign_layouts(b.finish(), 64);
  EXPECT_EQ(layouts[product].kind, Layout::Kind::kDealt);
  EXPECT_EQ(layouts[total].kind, Layout::Kind::kUniform);
}

}  // namespace
}  // namespace tenon::codegen
