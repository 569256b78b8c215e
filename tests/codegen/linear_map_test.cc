// The algebra against enumeration: every input, every thread and register, every lane.
#include "codegen/linear_map.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "codegen/layouts.h"

namespace tenon::codegen {
namespace {

LinearMap random_map(std::mt19937& random, int inputs, int outputs) {
  std::vector<uint64_t> columns;
  for (int i = 0; i < inputs; ++i) columns.push_back(random() & ((1u << outputs) - 1));
  return {outputs, columns};
}

std::set<uint64_t> reached(const LinearMap& map) {
  std::set<uint64_t> out;
  for (uint64_t x = 0; x < uint64_t{1} << map.inputs(); ++x) out.insert(map(x));
  return out;
}

TEST(LinearMapTest, RankCountsWhatIsReached) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    LinearMap map =
        random_map(random, static_cast<int>(random() % 8), 1 + static_cast<int>(random() % 7));
    std::set<uint64_t> outputs = reached(map);
    EXPECT_EQ(outputs.size(), size_t{1} << map.rank());
    EXPECT_EQ(map.is_onto(), outputs.size() == size_t{1} << map.outputs());
    EXPECT_EQ(map.is_one_to_one(), outputs.size() == size_t{1} << map.inputs());
    for (uint64_t y = 0; y < uint64_t{1} << map.outputs(); ++y) {
      auto x = map.solve(y);
      ASSERT_EQ(x.has_value(), outputs.contains(y));
      if (x) {
        EXPECT_EQ(map(*x), y);
      }
    }
    EXPECT_EQ(map.copies().size(), static_cast<size_t>(map.inputs() - map.rank()));
    for (uint64_t copy : map.copies()) {
      EXPECT_NE(copy, 0u);
      EXPECT_EQ(map(copy), 0u);
    }
  }
}

TEST(LinearMapTest, CompositionAndInverse) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    LinearMap inner = random_map(random, 6, 5), outer = random_map(random, 5, 4);
    LinearMap both = outer.after(inner);
    for (uint64_t x = 0; x < 64; ++x) ASSERT_EQ(both(x), outer(inner(x)));
    auto first = outer.before(both);
    ASSERT_TRUE(first);
    EXPECT_EQ(outer.after(*first), both);
    auto inverse = both.inverse();
    ASSERT_EQ(inverse.has_value(), reached(both).size() == 16);
    if (inverse) {
      EXPECT_EQ(both.after(*inverse), LinearMap::identity(4));
    }
  }
}

std::vector<Layout> linear_layouts() {
  std::vector<Layout> out{Layout::uniform(128), Layout::replicated({8, 4}, 64)};
  for (int threads : {32, 128, 256}) {
    for (const std::vector<int>& shape :
         {std::vector{1}, {16}, {4096}, {4, 2}, {16, 8}, {64, 32}, {128, 64}}) {
      out.push_back(Layout::dealt(shape, threads));
      if (shape.size() < 2 || shape[0] < 16) continue;
      for (bool rows_together : {false, true}) {
        Layout mma = Layout::mma(shape, threads, rows_together);
        out.insert(out.end(), {mma, mma.rows_of(), mma.columns_of()});
      }
      if (auto sums = Layout::sums(shape, threads)) out.push_back(*sums);
      if (auto left = Layout::left_operand(shape, threads)) out.push_back(*left);
    }
  }
  return out;
}

TEST(LinearMapTest, LayoutsAreWhatTheirMapSays) {
  for (const Layout& layout : linear_layouts()) {
    auto map = layout.linear();
    ASSERT_TRUE(map) << layout.text();
    ASSERT_EQ(1 << map->inputs(), layout.threads * layout.registers()) << layout.text();
    for (int thread = 0; thread < layout.threads; ++thread) {
      for (int reg = 0; reg < layout.registers(); ++reg) {
        auto input = static_cast<uint64_t>(reg * layout.threads + thread);
        ASSERT_EQ((*map)(input), static_cast<uint64_t>(layout.element_of(thread, reg)))
            << layout.text();
      }
    }
    ASSERT_TRUE(map->is_onto()) << layout.text();
    // The inverse leads to a holder that is nobody's copy.
    LinearMap holder = map->inverse().value();
    for (int64_t element = 0; element < layout.elements(); ++element) {
      auto at = static_cast<int>(holder(static_cast<uint64_t>(element)));
      ASSERT_TRUE(layout.is_first_copy(at % layout.threads, at / layout.threads)) << layout.text();
    }
  }
  EXPECT_FALSE(Layout::dealt({48}, 32).linear());
  EXPECT_FALSE(Layout::dealt({64}, 96).linear());
  EXPECT_FALSE(Layout::mma({8, 8}, 32, false).linear());
}

TEST(LinearMapTest, ReplicatedTilesAreWholeInEveryThread) {
  Layout layout = Layout::replicated({4, 8}, 64);
  EXPECT_EQ(layout.registers(), 32);
  for (int reg = 0; reg < 32; ++reg) EXPECT_EQ(layout.element_of(63, reg), reg);
  EXPECT_EQ(layout.linear()->copies().size(), 6u);
}

TEST(LinearMapTest, SwizzledRowsAreWhatTheCopyEngineWrites) {
  for (int row_bytes : {32, 64, 128}) {
    LinearMap swizzle = swizzled_rows(row_bytes, 12);
    for (uint64_t byte = 0; byte < 4096; ++byte) {
      uint64_t line = byte / 128, units = static_cast<uint64_t>(row_bytes / 16);
      uint64_t unit = byte / 16 % units, place = unit ^ (line % 8 % units);
      ASSERT_EQ(swizzle(byte), byte / 16 / units * units * 16 + place * 16 + byte % 16);
      ASSERT_EQ(swizzle(swizzle(byte)), byte);
    }
  }
}

TEST(LinearMapTest, WavefrontsAreThoseOfEveryLaneWrittenDown) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    int bytes = 1 << random() % 5;
    std::vector<uint64_t> columns;
    for (int i = 0; i < 5; ++i) {
      columns.push_back(random() % 4096 / static_cast<unsigned>(bytes) *
                        static_cast<unsigned>(bytes));
    }
    LinearMap address(12, columns);
    std::vector<int64_t> addresses;
    for (uint64_t lane = 0; lane < 32; ++lane)
      addresses.push_back(static_cast<int64_t>(address(lane)));
    ASSERT_EQ(wavefronts(address, bytes), wavefronts(addresses, bytes)) << bytes;
  }
}

// Eight rows of 128 bytes, one unit of each: what ldmatrix reads.
TEST(LinearMapTest, SwizzlingLetsRowsPassAtOnce) {
  std::vector<int> rows{7, 8, 9, 4, 5};  // lanes 0 … 7 are rows, then units
  LinearMap plain = LinearMap::of_bits(12, rows);
  EXPECT_EQ(wavefronts(plain, 16), 32);
  EXPECT_EQ(wavefronts(swizzled_rows(128, 12).after(plain), 16), 4);
}

}  // namespace
}  // namespace tenon::codegen
