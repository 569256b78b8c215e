// Dots and look-ups against plain loops, on every level of instructions that this machine has.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/convert.h"
#include "codegen/interpret.h"
#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

struct Size {
  int m, k, n;
};

constexpr Size kSizes[] = {{1, 1, 16}, {6, 1, 64}, {4, 3, 5},  {2, 8, 48},
                           {5, 2, 3},  {3, 4, 1},  {1, 7, 33}, {8, 1, 24}};

std::vector<float> numbers(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 64;
  return out;
}

// What the operation is defined as: one fma per k, in order.
std::vector<float> expected_dot(const Size& s, const std::vector<float>& acc,
                                const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> out = acc;
  for (int i = 0; i < s.m; ++i) {
    for (int j = 0; j < s.n; ++j) {
      float& sum = out[i * s.n + j];
      for (int k = 0; k < s.k; ++k) sum = std::fma(a[i * s.k + k], b[k * s.n + j], sum);
    }
  }
  return out;
}

Kernel float_dot(const Size& s, bool folded, bool tf32) {
  Builder b("dot");
  ValueId acc = b.buffer("acc", DType::kF32), left = b.buffer("a", DType::kF32);
  ValueId right = b.buffer("b", DType::kF32);
  ValueId sum = b.load({acc, b.index(0)}, {s.m, s.n});
  ValueId a = b.load({left, b.index(0)}, {s.m, s.k});
  ValueId c = b.load({right, b.index(0)}, {s.k, s.n});
  if (!folded) {  // a second use keeps the loads whole
    a = b.add(a, b.constant(DType::kF32, 0));
    c = b.add(c, b.constant(DType::kF32, 0));
  }
  b.store({acc, b.index(0)}, tf32 ? b.dot_tf32(sum, a, c) : b.dot(sum, a, c));
  return b.finish();
}

TEST(DotsTest, FloatsInOrder) {
  for (const HostTarget& target : runnable_targets()) {
    for (const Size& s : kSizes) {
      for (bool folded : {true, false}) {
        HostKernel kernel(float_dot(s, folded, /*tf32=*/false), target);
        auto x = numbers(s.m * s.k, 1), y = numbers(s.k * s.n, 2), z = numbers(s.m * s.n, 3);
        auto expected = expected_dot(s, z, x, y);
        kernel({z.data(), x.data(), y.data()});
        for (size_t i = 0; i < z.size(); ++i) {
          ASSERT_EQ(z[i], expected[i]) << s.m << "x" << s.k << "x" << s.n << " " << i;
        }
      }
    }
  }
}

// As codegen/interpret.h says, bit for bit.
TEST(DotsTest, Tf32RoundsOperands) {
  for (const HostTarget& target : runnable_targets()) {
    for (const Size& s : kSizes) {
      for (bool folded : {true, false}) {
        const Kernel rounded = float_dot(s, folded, /*tf32=*/true);
        auto x = numbers(s.m * s.k, 1), y = numbers(s.k * s.n, 2), z = numbers(s.m * s.n, 3);
        for (float& number : x) number *= 1.23f;
        for (float& number : y) number *= 1.23f;
        x.front() = std::numeric_limits<float>::max();
        if (s.k > 1) y.back() = std::numeric_limits<float>::infinity();
        auto expected = z, exact = expected_dot(s, z, x, y);
        interpret(rounded, std::vector<void*>{expected.data(), x.data(), y.data()}, {}, 0, 1);
        HostKernel kernel(rounded, target);
        kernel({z.data(), x.data(), y.data()});
        for (size_t i = 0; i < z.size(); ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(z[i]), std::bit_cast<uint32_t>(expected[i]))
              << s.m << "x" << s.k << "x" << s.n << " " << i << " " << z[i] << " " << expected[i];
        }
        EXPECT_NE(z, exact);
      }
    }
  }
}

TEST(DotsTest, HalvesAndIntegers) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    Size s{3, 5, 20};
    Builder b("dot");
    ValueId acc = b.buffer("acc", DType::kF32), left = b.buffer("a", DType::kF32);
    ValueId right = b.buffer("b", dtype);
    ValueId sum = b.load({acc, b.index(0)}, {s.m, s.n});
    b.store({acc, b.index(0)}, b.dot(sum, b.load({left, b.index(0)}, {s.m, s.k}),
                                     b.load({right, b.index(0)}, {s.k, s.n})));
    HostKernel kernel(b.finish());
    auto x = numbers(s.m * s.k, 1), y = numbers(s.k * s.n, 2), z = numbers(s.m * s.n, 3);
    std::vector<uint16_t> packed(y.size());
    for (size_t i = 0; i < y.size(); ++i) {
      packed[i] = static_cast<uint16_t>(encode(dtype, y[i]));
      y[i] = static_cast<float>(decode(dtype, packed[i]));
    }
    auto expected = expected_dot(s, z, x, y);
    kernel({z.data(), x.data(), packed.data()});
    EXPECT_EQ(z, expected) << name(dtype);
  }
  Builder b("integers");
  ValueId acc = b.buffer("acc", DType::kI32), left = b.buffer("a", DType::kI32);
  b.store({acc, b.index(0)},
          b.dot(b.load({acc, b.index(0)}, {2, 3}), b.load({left, b.index(0)}, {2, 2}),
                b.load({left, b.index(4)}, {2, 3})));
  HostKernel kernel(b.finish());
  std::vector<int32_t> z{1, 2, 3, 4, 5, 6}, a{1, 2, 3, 4, 10, 20, 30, 40, 50, 60};
  kernel({z.data(), a.data()});
  EXPECT_EQ(z, (std::vector<int32_t>{91, 122, 153, 194, 265, 336}));
}

TEST(DotsTest, BothSidesHalves) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    Size s{16, 16, 24};
    Builder b("dot");
    ValueId acc = b.buffer("acc", DType::kF32), left = b.buffer("a", dtype);
    ValueId right = b.buffer("b", dtype);
    b.store({acc, b.index(0)},
            b.dot(b.load({acc, b.index(0)}, {s.m, s.n}), b.load({left, b.index(0)}, {s.m, s.k}),
                  b.load({right, b.index(0)}, {s.k, s.n})));
    HostKernel kernel(b.finish());
    auto x = numbers(s.m * s.k, 1), y = numbers(s.k * s.n, 2), z = numbers(s.m * s.n, 3);
    std::vector<uint16_t> packed[2];
    for (auto* side : {&x, &y}) {
      for (float& value : *side) {
        packed[side == &y].push_back(static_cast<uint16_t>(encode(dtype, value)));
        value = static_cast<float>(decode(dtype, packed[side == &y].back()));
      }
    }
    auto expected = expected_dot(s, z, x, y);
    kernel({z.data(), packed[0].data(), packed[1].data()});
    EXPECT_EQ(z, expected) << name(dtype);
  }
}

TEST(DotsTest, LoadsDoNotMovePastStores) {
  Builder b("order");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32);
  ValueId a = b.load({x, b.index(0)}, {2, 2}), c = b.load({x, b.index(0)}, {2, 8});
  b.store({x, b.index(0)}, b.constant(DType::kF32, 100, {16}));
  b.store({y, b.index(0)}, b.dot(b.constant(DType::kF32, 0, {2, 8}), a, c));
  HostKernel kernel(b.finish());
  std::vector<float> in(16, 1), out(16);
  kernel({in.data(), out.data()});
  for (float value : out) EXPECT_EQ(value, 2);
}

TEST(DotsTest, StridedColumnsOfA) {
  Builder b("strided");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32);
  ValueId stride = b.index_parameter("stride");
  ValueId a = b.load({x, b.index(1), {stride, b.index(3)}, {}}, {2, 2});
  ValueId c = b.load({x, b.index(0)}, {2, 4});
  b.store({y, b.index(0)}, b.dot(b.constant(DType::kF32, 0, {2, 4}), a, c));
  HostKernel kernel(b.finish());
  std::vector<float> in{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, out(8);
  kernel({in.data(), out.data()}, {5});
  // a = [[1, 4], [6, 9]], c = [[0 … 3], [4 … 7]]
  EXPECT_EQ(out, (std::vector<float>{16, 21, 26, 31, 36, 51, 66, 81}));
}

TEST(DotsTest, BytesAreExact) {
  const Size sizes[] = {{1, 4, 16}, {3, 4, 48}, {2, 8, 5}, {4, 4, 3}, {1, 12, 16}, {6, 4, 64}};
  const auto value_of = [](DType type, uint8_t code) {
    return type == DType::kU8 ? int{code} : int{static_cast<int8_t>(code)};
  };
  std::mt19937 random(5);
  for (const HostTarget& target : runnable_targets()) {
    for (const Size& s : sizes) {
      for (auto [a_type, b_type] : {std::pair{DType::kU8, DType::kI8},
                                    {DType::kI8, DType::kI8},
                                    {DType::kI8, DType::kU8}}) {
        for (bool folded : {true, false}) {
          Builder b("bytes");
          ValueId acc = b.buffer("acc", DType::kI32), left = b.buffer("a", a_type);
          ValueId right = b.buffer("b", b_type);
          ValueId a = b.load({left, b.index(0)}, {s.m, s.k});
          ValueId c = b.load({right, b.index(0)}, {s.n, s.k});
          if (!folded) {
            a = b.binary(Fn::kXor, a, b.integer_constant(a_type, 0x55));
            a = b.binary(Fn::kXor, a, b.integer_constant(a_type, 0x55));
            c = b.reshape(b.load({right, b.index(0)}, {s.n * s.k}), {s.n, s.k});
          }
          ValueId sum = b.load({acc, b.index(0)}, {s.m, s.n});
          b.store({acc, b.index(0)}, b.dot_i8(sum, a, c));
          HostKernel kernel(b.finish(), target);
          std::vector<uint8_t> x(s.m * s.k), y(s.n * s.k);
          // Extremes first: pairs that saturate 16-bit sums.
          const auto extreme = [](DType type) { return type == DType::kU8 ? 255 : 128; };
          for (auto& v : x) v = static_cast<uint8_t>(random() % 2 ? extreme(a_type) : random());
          for (auto& v : y) v = static_cast<uint8_t>(random() % 2 ? extreme(b_type) : random());
          std::vector<int32_t> z(s.m * s.n, 7);
          kernel({z.data(), x.data(), y.data()});
          for (int i = 0; i < s.m; ++i) {
            for (int j = 0; j < s.n; ++j) {
              int32_t expected = 7;
              for (int k = 0; k < s.k; ++k) {
                expected += value_of(a_type, x[i * s.k + k]) * value_of(b_type, y[j * s.k + k]);
              }
              ASSERT_EQ(z[i * s.n + j], expected)
                  << target.text() << " " << name(a_type) << " " << name(b_type);
            }
          }
        }
      }
    }
  }
}

// Two rows by two columns are one instruction where there is i8mm: sums in each sign, of 8 and 24
// k, with operands in registers and in memory.
TEST(DotsTest, ByteMatrices) {
  if (no_emulator()) GTEST_SKIP() << no_emulator();
  constexpr int kCases = 2, kLongest = 24;
  Builder b("matrices");
  ValueId acc = b.buffer("acc", DType::kI32), right = b.buffer("b", DType::kI8);
  ValueId with_sign = b.buffer("i8", DType::kI8), without = b.buffer("u8", DType::kU8);
  int sums = 0;
  for (ValueId left : {with_sign, without}) {
    for (int k : {8, kLongest}) {
      ValueId a = k == 8 ? b.reshape(b.load({left, b.index(0)}, {2 * k}), {2, k})
                         : b.load({left, b.index(0), {b.index(kLongest), b.index(1)}}, {2, k});
      ValueId c = b.reshape(b.load({right, b.index(0)}, {2 * k}), {2, k});
      const Access at{acc, b.index(4 * sums++)};
      b.store(at, b.dot_i8(b.load(at, {2, 2}), a, c));
    }
  }
  const Kernel kernel = b.finish();
  std::mt19937 random(6);
  std::vector<uint8_t> x(kCases * kLongest), y(kCases * kLongest);
  for (auto* side : {&x, &y}) {
    for (auto& v : *side) v = random() % 2 ? 128 : static_cast<uint8_t>(random());
  }
  for (const HostTarget& target : runnable_targets()) {
    std::vector<int32_t> got(4 * sums, 7), expected = got;
    interpret(kernel, std::vector<void*>{expected.data(), y.data(), x.data(), x.data()}, {}, 0, 1);
    HostKernel(kernel, target)({got.data(), y.data(), x.data(), x.data()});
    EXPECT_EQ(got, expected) << target.text();
    EXPECT_NE(got, std::vector<int32_t>(got.size(), 7));
  }
}

void expect_lookup(DType dtype, int entries, DType code_type, bool constant, int lanes) {
  std::vector<double> values;
  for (int i = 0; i < entries; ++i)
    values.push_back(dtype == DType::kBool ? i % 3 == 0 : i % 100 + 1);
  for (const HostTarget& target : runnable_targets()) {
    Builder b("lookup");
    ValueId table_buffer = b.buffer("table", dtype), codes = b.buffer("codes", code_type);
    ValueId out = b.buffer("out", dtype);
    ValueId table =
        constant ? b.table(dtype, values) : b.load({table_buffer, b.index(0)}, {entries});
    std::vector<int> shape = lanes == 0 ? std::vector<int>{} : std::vector{lanes};
    b.store({out, b.index(0)}, b.lookup(table, b.load({codes, b.index(0)}, shape)));
    HostKernel kernel(b.finish(), target);
    std::vector<uint64_t> table_data(entries), code_data(256), got(256);
    for (int i = 0; i < entries; ++i) store_element(dtype, table_data.data(), i, values[i]);
    // Bits above the code must not matter.
    int count = std::max(1, lanes);
    for (int i = 0; i < count; ++i) {
      store_code(code_type, code_data.data(), i, static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15);
    }
    kernel({table_data.data(), code_data.data(), got.data()});
    for (int i = 0; i < count; ++i) {
      uint64_t code = load_code(code_type, code_data.data(), i) % entries;
      ASSERT_EQ(load_element(dtype, got.data(), i), values[code])
          << name(dtype) << " " << entries << " " << target.text();
    }
  }
}

TEST(LookupTest, EveryElementType) {
  for (DType dtype : {DType::kBool, DType::kI8, DType::kU8, DType::kF16, DType::kBF16, DType::kF32,
                      DType::kI32, DType::kI64, DType::kF64}) {
    for (int entries : {16, 256}) {
      expect_lookup(dtype, entries, DType::kU8, true, 37);
      expect_lookup(dtype, entries, DType::kI32, false, 64);
    }
  }
  expect_lookup(DType::kF32, 16, DType::kU32, true, 0);
  expect_lookup(DType::kU8, 16, DType::kU32, true, 1);
  expect_lookup(DType::kU8, 16, DType::kU8, false, 128);
  expect_lookup(DType::kF32, 16, DType::kI64, true, 16);
}

// Whole numbers, so that every order of the sum gives the same.
TEST(DotsTest, TilesInMemory) {
  constexpr int64_t kDistance = 16 * 96 + 64;  // rows have more k than is multiplied
  for (const HostTarget& target : runnable_targets()) {
    for (const Size& s : {Size{16, 32, 16}, Size{32, 64, 32}, Size{32, 32, 16}, Size{16, 96, 32}}) {
      SCOPED_TRACE(target.text());
      Builder b("tiles");
      ValueId c = b.buffer("c", DType::kF32), a = b.buffer("a", DType::kBF16);
      ValueId w = b.buffer("b", DType::kBF16), k = b.index_parameter("k");
      b.tile_dot({c, b.index(32)}, {a, b.index(64)}, {w, b.index(128)},
                 {s.m, s.n, b.index(kDistance), k});
      const Kernel block = b.finish();
      std::mt19937 random(7);
      const auto halves = [&](size_t count) {
        std::vector<uint16_t> out(count);
        for (uint16_t& x : out) {
          const auto value = static_cast<float>(static_cast<int>(random() % 31) - 15);
          x = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
        }
        return out;
      };
      auto left = halves(64 + 2 * kDistance), right = halves(128 + s.k * s.n);
      std::vector<float> sums(static_cast<size_t>(32 + s.m * s.n + 16), 3), expected = sums;
      interpret(block, std::vector<void*>{expected.data(), left.data(), right.data()},
                std::vector<int64_t>{s.k}, 0, 1);
      HostKernel(block, target)({sums.data(), left.data(), right.data()}, {s.k});
      EXPECT_EQ(sums, expected) << s.m << "x" << s.k << "x" << s.n;
      EXPECT_EQ(sums[31], 3);
      EXPECT_NE(sums[32], 3);
      EXPECT_EQ(sums[sums.size() - 16], 3);
    }
  }
}

}  // namespace
}  // namespace tenon::codegen
