// Every elementwise function on every element type, against plain C++.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/convert.h"
#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

template <typename T>
constexpr DType kDType = DType::kUndefined;
template <>
constexpr DType kDType<int8_t> = DType::kI8;
template <>
constexpr DType kDType<uint8_t> = DType::kU8;
template <>
constexpr DType kDType<int16_t> = DType::kI16;
template <>
constexpr DType kDType<uint16_t> = DType::kU16;
template <>
constexpr DType kDType<int32_t> = DType::kI32;
template <>
constexpr DType kDType<uint32_t> = DType::kU32;
template <>
constexpr DType kDType<int64_t> = DType::kI64;
template <>
constexpr DType kDType<uint64_t> = DType::kU64;
template <>
constexpr DType kDType<float> = DType::kF32;
template <>
constexpr DType kDType<double> = DType::kF64;

constexpr int kCount = 101;

template <typename T>
std::vector<T> samples(uint32_t seed) {
  std::mt19937_64 random(seed);
  using Limits = std::numeric_limits<T>;
  std::vector<T> out{T(0), T(1), T(2), T(-1), Limits::max(), Limits::lowest(), T(3), T(7)};
  if constexpr (std::is_floating_point_v<T>) {
    out.insert(out.end(), {-T(0), Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
                           Limits::denorm_min(), T(0.5), T(1.5), T(2.5), T(-2.5), T(-0.5)});
  }
  // The second operand meets each special value with each other.
  std::shuffle(out.begin(), out.end(), random);
  while (out.size() < kCount) {
    uint64_t bits = random();
    if constexpr (std::is_floating_point_v<T>) {
      out.push_back(static_cast<T>(static_cast<int64_t>(bits)) * T(1e-16) *
                    (bits % 3 == 0 ? T(1e-3) : T(10)));
    } else {
      out.push_back(static_cast<T>(bits % 3 == 0 ? bits % 11 : bits));
    }
  }
  return out;
}

template <typename T>
bool same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  }
  return a == b;
}

template <typename T>
class ElementwiseTest : public testing::Test {
 protected:
  template <typename Out>
  void expect(const std::vector<DType>& inputs, const std::vector<const void*>& data,
              const std::function<ValueId(Builder&, std::vector<ValueId>)>& compute,
              const std::vector<Out>& expected, std::string_view what, DType output) {
    for (const HostTarget& target : runnable_targets()) {
      if (target.has("avx512f") && target.features != detect_host().features) continue;
      HostKernel kernel(map_kernel(inputs, output, compute), target);
      std::vector<Out> got(expected.size());
      run_map(kernel, data, got);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(same(got[i], expected[i]))
            << what << " of " << name(kDType<T>) << " at " << i << ": got " << +got[i]
            << ", expected " << +expected[i];
      }
    }
  }

  void binary(Fn fn, const std::function<T(T, T)>& truth) {
    std::vector<T> a = samples<T>(1), b = samples<T>(2), expected;
    for (int i = 0; i < kCount; ++i) expected.push_back(truth(a[i], b[i]));
    expect<T>(
        {kDType<T>, kDType<T>}, {a.data(), b.data()},
        [&](Builder& builder, std::vector<ValueId> x) { return builder.binary(fn, x[0], x[1]); },
        expected, codegen::name(fn), kDType<T>);
  }

  void unary(Fn fn, const std::function<T(T)>& truth) {
    std::vector<T> a = samples<T>(3), expected;
    for (T x : a) expected.push_back(truth(x));
    expect<T>(
        {kDType<T>}, {a.data()},
        [&](Builder& builder, std::vector<ValueId> x) { return builder.unary(fn, x[0]); }, expected,
        codegen::name(fn), kDType<T>);
  }

  void comparison(Fn fn, const std::function<bool(T, T)>& truth) {
    std::vector<T> a = samples<T>(4), b = samples<T>(5);
    for (int i = 0; i < kCount; i += 3) b[i] = a[i];
    std::vector<uint8_t> expected;
    for (int i = 0; i < kCount; ++i) expected.push_back(truth(a[i], b[i]));
    expect<uint8_t>(
        {kDType<T>, kDType<T>}, {a.data(), b.data()},
        [&](Builder& builder, std::vector<ValueId> x) { return builder.compare(fn, x[0], x[1]); },
        expected, codegen::name(fn), DType::kBool);
  }

  // Converts to `to` and compares bit patterns with base/convert.h.
  void cast_to(DType to) {
    std::vector<T> a = samples<T>(6);
    size_t width = storage_bytes(to, 1);
    HostKernel kernel(map_kernel(
        {kDType<T>}, to, [&](Builder& b, std::vector<ValueId> x) { return b.cast(x[0], to); }));
    std::vector<uint8_t> got(kCount * width);
    int64_t n = kCount;
    kernel({a.data(), got.data()}, {n}, (n + 15) / 16);
    for (int i = 0; i < kCount; ++i) {
      std::vector<uint8_t> expected(width);
      store_expected(to, a[i], expected.data());
      double value = load_element(to, got.data(), i);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(load_element(to, expected.data(), 0))) << +a[i];
        continue;
      }
      ASSERT_EQ(std::memcmp(expected.data(), got.data() + i * width, width), 0)
          << name(kDType<T>) << " " << +a[i] << " to " << name(to) << " gave " << value
          << ", expected " << load_element(to, expected.data(), 0);
    }
  }

 private:
  static void store_expected(DType to, T value, void* place) {
    if constexpr (std::is_integral_v<T>) {
      if (is_integer(to)) return store_code(to, place, 0, static_cast<uint64_t>(int64_t(value)));
      if (to == DType::kF32) {
        auto direct = static_cast<float>(value);
        std::memcpy(place, &direct, sizeof direct);
        return;
      }
      if (to == DType::kF16 || to == DType::kBF16) {  // through f32, as the emitter does
        return store_element(to, place, 0, static_cast<float>(value));
      }
    }
    store_element(to, place, 0, static_cast<double>(value));
  }
};

template <typename T>
struct Unsigned {
  using Type = std::make_unsigned_t<T>;
};

using AllTypes = testing::Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t,
                                uint64_t, float, double>;
TYPED_TEST_SUITE(ElementwiseTest, AllTypes);

// Wraps at the width of T without undefined behaviour.
template <typename T>
T wrap(auto compute, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return compute(a, b);
  } else {
    return static_cast<T>(compute(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  }
}

TYPED_TEST(ElementwiseTest, Arithmetic) {
  using T = TypeParam;
  this->binary(Fn::kAdd,
               [](T a, T b) { return wrap<T>([](auto x, auto y) { return x + y; }, a, b); });
  this->binary(Fn::kSub,
               [](T a, T b) { return wrap<T>([](auto x, auto y) { return x - y; }, a, b); });
  this->binary(Fn::kMul,
               [](T a, T b) { return wrap<T>([](auto x, auto y) { return x * y; }, a, b); });
  this->unary(Fn::kNeg, [](T a) {
    return wrap<T>([](auto x, auto y) { return x - y; },
                   std::is_floating_point_v<T> ? T(-0.0) : T(0), a);
  });
}

template <typename T>
T quotient(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a / b;
  } else {
    if (b == 0) return 0;
    if (std::is_signed_v<T> && b == T(-1)) return static_cast<T>(-static_cast<uint64_t>(a));
    return static_cast<T>(a / b);
  }
}

template <typename T>
T remainder_of(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmod(a, b);
  } else {
    if (b == 0 || (std::is_signed_v<T> && b == T(-1))) return 0;
    return static_cast<T>(a % b);
  }
}

TYPED_TEST(ElementwiseTest, DivisionNeverTraps) {
  using T = TypeParam;
  this->binary(Fn::kDiv, quotient<T>);
  this->binary(Fn::kRem, remainder_of<T>);
  this->binary(Fn::kMod, [](T a, T b) {
    T r = remainder_of(a, b);
    return r != 0 && (r < 0) != (b < 0) ? static_cast<T>(r + b) : r;
  });
}

TYPED_TEST(ElementwiseTest, ExtremaKeepNan) {
  using T = TypeParam;
  auto pick = [](bool max) {
    return [max](T a, T b) {
      if (a != a) return a;
      if (b != b) return b;
      return max ? std::max(a, b) : std::min(a, b);
    };
  };
  this->binary(Fn::kMax, pick(true));
  this->binary(Fn::kMin, pick(false));
}

TYPED_TEST(ElementwiseTest, Comparisons) {
  using T = TypeParam;
  this->comparison(Fn::kEqual, [](T a, T b) { return a == b; });
  this->comparison(Fn::kNotEqual, [](T a, T b) { return a != b; });
  this->comparison(Fn::kLess, [](T a, T b) { return a < b; });
  this->comparison(Fn::kLessEqual, [](T a, T b) { return a <= b; });
  this->comparison(Fn::kGreater, [](T a, T b) { return a > b; });
  this->comparison(Fn::kGreaterEqual, [](T a, T b) { return a >= b; });
}

TYPED_TEST(ElementwiseTest, SignsAndSelection) {
  using T = TypeParam;
  this->unary(Fn::kAbs, [](T a) {
    return a < 0 ? wrap<T>([](auto x, auto y) { return x - y; }, T(0), a) : a;
  });
  this->unary(Fn::kSign, [](T a) { return a > 0 ? T(1) : a < 0 ? T(-1) : a; });
  std::vector<T> a = samples<T>(7), b = samples<T>(8), expected;
  for (int i = 0; i < kCount; ++i) expected.push_back(a[i] < b[i] ? a[i] : b[i]);
  this->template expect<T>(
      {kDType<T>, kDType<T>}, {a.data(), b.data()},
      [](Builder& builder, std::vector<ValueId> x) {
        return builder.select(builder.less(x[0], x[1]), x[0], x[1]);
      },
      expected, "select", kDType<T>);
}

TYPED_TEST(ElementwiseTest, Casts) {
  for (DType to :
       {DType::kBool, DType::kI8, DType::kU8, DType::kI16, DType::kU16, DType::kI32, DType::kU32,
        DType::kI64, DType::kU64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    this->cast_to(to);
  }
}

TYPED_TEST(ElementwiseTest, BitsOfIntegers) {
  using T = TypeParam;
  if constexpr (std::is_integral_v<T>) {
    constexpr int kWidth = std::numeric_limits<std::make_unsigned_t<T>>::digits;
    this->binary(Fn::kAnd, [](T a, T b) { return static_cast<T>(a & b); });
    this->binary(Fn::kOr, [](T a, T b) { return static_cast<T>(a | b); });
    this->binary(Fn::kXor, [](T a, T b) { return static_cast<T>(a ^ b); });
    this->unary(Fn::kNot, [](T a) { return static_cast<T>(~a); });
    auto in_range = [](T b) { return b >= 0 && static_cast<uint64_t>(b) < kWidth; };
    this->binary(Fn::kShiftLeft, [&](T a, T b) {
      return in_range(b) ? static_cast<T>(static_cast<uint64_t>(a) << b) : T(0);
    });
    this->binary(Fn::kShiftRight,
                 [&](T a, T b) { return in_range(b) ? static_cast<T>(a >> b) : T(0); });
  }
}

TYPED_TEST(ElementwiseTest, PowersOfIntegers) {
  using T = TypeParam;
  if constexpr (std::is_integral_v<T>) {
    this->binary(Fn::kPow, [](T a, T b) -> T {
      if (std::is_signed_v<T> && b < 0) {
        if (a == 1) return 1;
        return a == T(-1) ? (b % 2 == 0 ? T(1) : T(-1)) : T(0);
      }
      uint64_t result = 1, square = static_cast<uint64_t>(a);
      for (auto left = static_cast<std::make_unsigned_t<T>>(b); left != 0; left >>= 1) {
        if (left & 1) result *= square;
        square *= square;
      }
      return static_cast<T>(result);
    });
  }
}

TYPED_TEST(ElementwiseTest, RealFunctions) {
  using T = TypeParam;
  if constexpr (std::is_floating_point_v<T>) {
    this->unary(Fn::kSqrt, [](T a) { return std::sqrt(a); });
    this->unary(Fn::kFloor, [](T a) { return std::floor(a); });
    this->unary(Fn::kCeil, [](T a) { return std::ceil(a); });
    this->unary(Fn::kTrunc, [](T a) { return std::trunc(a); });
    this->unary(Fn::kRound, [](T a) { return std::nearbyint(a); });
    this->unary(Fn::kReciprocal, [](T a) { return 1 / a; });
    this->unary(Fn::kRsqrt, [](T a) { return 1 / std::sqrt(a); });
    for (Fn fn : {Fn::kIsNan, Fn::kIsInf}) {
      std::vector<T> a = samples<T>(9);
      std::vector<uint8_t> expected;
      for (T x : a) expected.push_back(fn == Fn::kIsNan ? std::isnan(x) : std::isinf(x));
      this->template expect<uint8_t>(
          {kDType<T>}, {a.data()},
          [&](Builder& b, std::vector<ValueId> x) { return b.unary(fn, x[0]); }, expected, name(fn),
          DType::kBool);
    }
    std::vector<T> a = samples<T>(10), b = samples<T>(11), c = samples<T>(12), expected;
    for (int i = 0; i < kCount; ++i) expected.push_back(std::fma(a[i], b[i], c[i]));
    this->template expect<T>(
        {kDType<T>, kDType<T>, kDType<T>}, {a.data(), b.data(), c.data()},
        [](Builder& builder, std::vector<ValueId> x) { return builder.fma(x[0], x[1], x[2]); },
        expected, "fma", kDType<T>);
  }
}

// LLVM 19 takes the comparison in a max of selects for one of x itself.
TEST(ExtremumTest, MaximumOfMagnitudeAndZero) {
  std::vector<float> x{-3, -0.5f, 0, 2, -INFINITY}, y(x.size());
  for (const HostTarget& target : runnable_targets()) {
    HostKernel kernel(map_kernel({DType::kF32}, DType::kF32,
                                 [](Builder& b, std::vector<ValueId> in) {
                                   return b.max(b.unary(Fn::kAbs, in[0]),
                                                b.constant(DType::kF32, 0));
                                 }),
                      target);
    run_map(kernel, {x.data()}, y);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], std::fabs(x[i]));
  }
}

// f16 and bf16: each operation in f32, rounded to the type.
class HalfTest : public testing::TestWithParam<DType> {};

TEST_P(HalfTest, RoundsEveryOperation) {
  DType dtype = GetParam();
  std::vector<uint16_t> a, b, got;
  for (uint32_t code = 0; code < 65536; code += 7) {
    a.push_back(static_cast<uint16_t>(code));
    b.push_back(static_cast<uint16_t>(code * 40503));
  }
  got.resize(a.size());
  for (const HostTarget& target : runnable_targets()) {
    HostKernel kernel(map_kernel({dtype, dtype}, dtype,
                                 [&](Builder& builder, std::vector<ValueId> x) {
                                   ValueId sum = builder.add(x[0], x[1]);
                                   return builder.select(builder.less(x[0], x[1]), sum, x[1]);
                                 }),
                      target);
    run_map(kernel, {a.data(), b.data()}, got);
    for (size_t i = 0; i < a.size(); ++i) {
      double x = decode(dtype, a[i]), y = decode(dtype, b[i]);
      double expected = x < y ? decode(dtype, encode(dtype, static_cast<float>(x + y))) : y;
      double value = decode(dtype, got[i]);
      ASSERT_TRUE(same(value, expected)) << x << " " << y << " gave " << value;
    }
  }
}

TEST_P(HalfTest, ConvertsEveryCodeAndRoundsFromF64) {
  DType dtype = GetParam();
  std::vector<uint16_t> codes(65536), back(65536);
  std::vector<double> wide(65536);
  for (uint32_t code = 0; code < 65536; ++code) codes[code] = static_cast<uint16_t>(code);
  HostKernel widen(map_kernel({dtype}, DType::kF64, [](Builder& b, std::vector<ValueId> x) {
    return b.cast(x[0], DType::kF64);
  }));
  run_map(widen, {codes.data()}, wide);
  for (uint32_t code = 0; code < 65536; ++code) {
    ASSERT_TRUE(same(wide[code], decode(dtype, code))) << code;
  }
  // Just off the middle between two codes, by less than f32 can tell.
  for (size_t i = 0; i + 1 < wide.size(); ++i) {
    double middle = (wide[i] + wide[i + 1]) / 2;
    if (std::isfinite(middle)) wide[i] = std::nextafter(middle, i % 2 ? INFINITY : -INFINITY);
  }
  HostKernel narrow(map_kernel({DType::kF64}, dtype, [&](Builder& b, std::vector<ValueId> x) {
    return b.cast(x[0], dtype);
  }));
  run_map(narrow, {wide.data()}, back);
  for (size_t i = 0; i < wide.size(); ++i) {
    if (std::isnan(wide[i])) continue;
    ASSERT_EQ(back[i], encode(dtype, wide[i])) << wide[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Halves, HalfTest, testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(name(info.param)); });

// Integers in a row, numbers of two bytes, and any others have ways of their own.
TEST(Lookup, FindsTheVeryBitsInEveryKindOfTable) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::vector<double>> tables(5);
  for (int code = 0; code < 16; ++code) {
    tables[0].push_back(code - 8);
    tables[1].push_back(code < 8 ? code : code - 16);
    tables[2].push_back(decode(DType::kF4E2M1, static_cast<uint64_t>(code)));
    tables[3].push_back(std::sin(code));
    tables[4].push_back(code == 3 ? kNan : code == 0 ? -0.0 : code);
  }
  std::vector<uint32_t> codes;
  for (uint32_t i = 0; i < 37; ++i) codes.push_back(i * 7 % 16);
  for (const std::vector<double>& table : tables) {
    const auto compute = [&](Builder& b, std::vector<ValueId> x) {
      return b.lookup(b.table(DType::kF32, table), x[0]);
    };
    for (const HostTarget& target : runnable_targets()) {
      HostKernel kernel(map_kernel({DType::kU32}, DType::kF32, compute), target);
      std::vector<float> got(codes.size());
      run_map(kernel, {codes.data()}, got);
      for (size_t i = 0; i < codes.size(); ++i) {
        const auto expected = static_cast<float>(table[codes[i]]);
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected)) << expected;
      }
    }
  }
}

}  // namespace
}  // namespace tenon::codegen
