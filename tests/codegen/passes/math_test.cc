// Accuracy of the expanded functions over all exponents, against libm in f64.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>

#include "codegen/arch_spec.h"
#include "codegen/interpret.h"
#include "codegen/passes/expand_math.h"
#include "codegen/tile/verify.h"
#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

constexpr double kMaxUlp = 4;

// Distance of `got` from the true value, in units of the last place of f32 there.
double ulp_error(float got, double truth) {
  float nearest = static_cast<float>(truth);
  if (std::isnan(truth)) return std::isnan(got) ? 0 : 1e9;
  if (std::isnan(got)) return 1e9;
  if (std::isinf(nearest) || std::isinf(got)) {
    // Rounding may go either way next to infinity.
    if (nearest == got) return 0;
    bool beside = std::fabs(truth) > 0x1.fffff0p127 && std::signbit(got) == std::signbit(truth) &&
                  (std::isinf(got) || std::fabs(got) > 0x1.fffff0p127f);
    return beside ? 1 : 1e9;
  }
  int exponent = std::max(nearest == 0 ? -126 : std::ilogb(nearest), -126);
  return std::fabs(got - truth) / std::ldexp(1.0, exponent - 23);
}

struct Case {
  Fn fn;
  double (*truth)(double);
  const char* name;
};

class MathTest : public testing::TestWithParam<Case> {};

std::vector<float> all_exponents(uint32_t step) {
  std::vector<float> values;
  for (uint64_t bits = 0; bits <= 0xffffffff; bits += step) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (float special : {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 88.7228394f, -87.3365f,
                        -103.97f, 0x1p-149f, 0x1.fffffep127f, 1.57079637f, 3.14159274f}) {
    values.push_back(special);
  }
  for (float near_one = 0.5f; near_one < 2; near_one += 3e-6f) {
    values.push_back(near_one);
    values.push_back(-near_one);
  }
  return values;
}

TEST_P(MathTest, StaysWithinFourUlp) {
  const Case& c = GetParam();
  std::vector<float> x = all_exponents(5003);
  for (const HostTarget& target : runnable_targets()) {
    if (target.vector_bits == 512 && target.features != detect_host().features) continue;
    HostKernel kernel(
        map_kernel({DType::kF32}, DType::kF32,
                   [&](Builder& b, std::vector<ValueId> in) { return b.unary(c.fn, in[0]); }),
        target);
    std::vector<float> y(x.size());
    run_map(kernel, {x.data()}, y);
    double worst = 0;
    float at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      double error = ulp_error(y[i], c.truth(x[i]));
      if (error > worst) worst = error, at = x[i];
    }
    EXPECT_LE(worst, kMaxUlp) << "at " << at << " on " << target.text();
    RecordProperty("worst_ulp_times_1000", static_cast<int>(worst * 1000));
  }
}

TEST_P(MathTest, KeepsSignsOfZero) {
  const Case& c = GetParam();
  HostKernel kernel(
      map_kernel({DType::kF32}, DType::kF32,
                 [&](Builder& b, std::vector<ValueId> in) { return b.unary(c.fn, in[0]); }));
  std::vector<float> x{0.0f, -0.0f}, y(2);
  run_map(kernel, {x.data()}, y);
  for (int i = 0; i < 2; ++i) {
    double truth = c.truth(x[i]);
    if (truth != 0) continue;
    EXPECT_EQ(std::signbit(y[i]), std::signbit(truth)) << c.name << " " << x[i];
  }
}

TEST_P(MathTest, CallsLibmForF64) {
  const Case& c = GetParam();
  HostKernel kernel(
      map_kernel({DType::kF64}, DType::kF64,
                 [&](Builder& b, std::vector<ValueId> in) { return b.unary(c.fn, in[0]); }));
  std::vector<double> x{0.1, 0.5, -0.7, 1.5, 3, -20, 1e10}, y(x.size());
  run_map(kernel, {x.data()}, y);
  for (size_t i = 0; i < x.size(); ++i) {
    double truth = c.truth(x[i]);
    if (std::isnan(truth)) {
      EXPECT_TRUE(std::isnan(y[i])) << x[i];
    } else {
      EXPECT_DOUBLE_EQ(y[i], truth) << x[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Functions, MathTest,
    testing::Values(Case{Fn::kExp, std::exp, "exp"}, Case{Fn::kExp2, std::exp2, "exp2"},
                    Case{Fn::kLog, std::log, "log"}, Case{Fn::kLog2, std::log2, "log2"},
                    Case{Fn::kSin, std::sin, "sin"}, Case{Fn::kCos, std::cos, "cos"},
                    Case{Fn::kTan, std::tan, "tan"}, Case{Fn::kTanh, std::tanh, "tanh"},
                    Case{Fn::kErf, std::erf, "erf"}, Case{Fn::kAsin, std::asin, "asin"},
                    Case{Fn::kAcos, std::acos, "acos"}, Case{Fn::kAtan, std::atan, "atan"},
                    Case{Fn::kSinh, std::sinh, "sinh"}, Case{Fn::kCosh, std::cosh, "cosh"},
                    Case{Fn::kAsinh, std::asinh, "asinh"}, Case{Fn::kAcosh, std::acosh, "acosh"},
                    Case{Fn::kAtanh, std::atanh, "atanh"}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// Puts what a GPU's instructions may be off by behind each of them, always and in one direction: 2
// ULP for 2^x, 1 ULP for 1 / x.
void distort(Kernel& kernel, Region& region, int direction) {
  std::vector<Operation> out;
  auto append = [&](Operation op, Type type) {
    auto id = static_cast<ValueId>(kernel.types.size());
    kernel.types.push_back(std::move(type));
    op.results = {id};
    out.push_back(std::move(op));
    return id;
  };
  for (const Operation& op : region.operations) {
    double ulps = op.fn == Fn::kExp2 ? 2 : op.fn == Fn::kReciprocal ? 1 : 0;
    if (ulps == 0) {
      out.push_back(op);
      continue;
    }
    Type real = kernel.types[op.results[0]], integer = real;
    integer.dtype = DType::kI32;
    auto number = [&](double value) {
      return append({.op = Op::kConstant, .number = value}, real);
    };
    ValueId exact = append(op, real);
    // 2^exponent; finite, so that infinity stays what it is.
    ValueId bits = append({.op = Op::kBitcast, .operands = {exact}}, integer);
    ValueId mask = append({.op = Op::kConstant, .integer = 0x7f800000}, integer);
    ValueId kept = append({.op = Op::kBinary, .fn = Fn::kAnd, .operands = {bits, mask}}, integer);
    ValueId power = append({.op = Op::kBitcast, .operands = {kept}}, real);
    power = append({.op = Op::kBinary, .fn = Fn::kMin, .operands = {power, number(0x1p127)}}, real);
    ValueId error = number(direction * ulps * 0x1p-23);
    out.push_back({.op = Op::kTernary,
                   .fn = Fn::kFma,
                   .operands = {power, error, exact},
                   .results = op.results});
  }
  region.operations = std::move(out);
}

// The largest distance from `truth` with the formulas of a GPU.
double worst_on_gpu(const Case& c, int direction) {
  constexpr int kLanes = 1024;
  Kernel kernel = expand_math(
      map_kernel(
          {DType::kF32}, DType::kF32,
          [&](Builder& b, std::vector<ValueId> in) { return b.unary(c.fn, in[0]); }, kLanes),
      gpu_math("sm_90a"));
  distort(kernel, kernel.body, direction);
  Support valid = verify(kernel);
  EXPECT_TRUE(valid) << valid.reason;
  std::vector<float> x = all_exponents(20011), y(x.size());
  void* buffers[] = {x.data(), y.data()};
  auto n = static_cast<int64_t>(x.size());
  interpret(kernel, buffers, std::array{n}, 0, (n + kLanes - 1) / kLanes);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulp_error(y[i], c.truth(x[i])));
  return worst;
}

double reciprocal(double x) { return 1 / x; }
double reciprocal_root(double x) { return 1 / std::sqrt(x); }

TEST(GpuMathTest, StaysWithinFourUlpWithInexactInstructions) {
  const Case kCases[] = {{Fn::kExp, std::exp, "exp"},
                         {Fn::kExp2, std::exp2, "exp2"},
                         {Fn::kTanh, std::tanh, "tanh"},
                         {Fn::kErf, std::erf, "erf"},
                         {Fn::kReciprocal, reciprocal, "reciprocal"},
                         {Fn::kRsqrt, reciprocal_root, "rsqrt"}};
  for (const Case& c : kCases) {
    for (int direction : {-1, 1}) {
      double worst = worst_on_gpu(c, direction);
      EXPECT_LE(worst, kMaxUlp) << c.name << " " << direction;
      RecordProperty(std::string(c.name) + (direction < 0 ? "_less" : "_more"),
                     static_cast<int>(worst * 1000));
    }
  }
}

// The formula alone costs less than 1 ULP over the instruction.
TEST(GpuMathTest, ExponentialAddsLittleToPowersOfTwo) {
  EXPECT_LE(worst_on_gpu({Fn::kExp, std::exp, "exp"}, 0), 1.01);
}

// Distance of `got` from the true value, in units of the last place of f64 there.
double ulp_error_f64(double got, long double truth) {
  const auto nearest = static_cast<double>(truth);
  if (std::isnan(truth)) return std::isnan(got) ? 0 : 1e9;
  if (std::isnan(got)) return 1e9;
  if (std::isinf(nearest) || std::isinf(got)) {
    const bool beside = std::fabs(nearest) > 0x1.ffffffffffff0p1023 &&
                        std::fabs(got) > 0x1.ffffffffffff0p1023 &&
                        std::signbit(got) == std::signbit(nearest);
    return nearest == got ? 0 : beside ? 1 : 1e9;
  }
  const int exponent = std::max(nearest == 0 ? -1022 : std::ilogb(nearest), -1022);
  return static_cast<double>(std::fabs(got - truth) / std::ldexp(1.0L, exponent - 52));
}

// One operation of f64 with the formulas of a GPU, which has no libm.
std::vector<double> on_gpu(Fn fn, const std::vector<std::vector<double>>& operands) {
  constexpr int kLanes = 1024;
  const Kernel kernel =
      expand_math(map_kernel(
                      std::vector<DType>(operands.size(), DType::kF64), DType::kF64,
                      [&](Builder& b, std::vector<ValueId> in) {
                        return in.size() == 1 ? b.unary(fn, in[0]) : b.binary(fn, in[0], in[1]);
                      },
                      kLanes),
                  gpu_math("sm_90a"));
  const Support valid = verify(kernel);
  EXPECT_TRUE(valid) << valid.reason;
  std::vector<double> y(operands[0].size());
  std::vector<void*> buffers;
  for (const auto& operand : operands) buffers.push_back(const_cast<double*>(operand.data()));
  buffers.push_back(y.data());
  const auto n = static_cast<int64_t>(y.size());
  interpret(kernel, buffers, std::array{n}, 0, (n + kLanes - 1) / kLanes);
  return y;
}

// Every exponent, and closer where functions change.
std::vector<double> numbers_f64() {
  std::vector<double> values = {0.0, -0.0, 1, -1, 0.5, -0.5, 2, 1024, -1074, INFINITY, -INFINITY,
                                NAN, 709.78271289338397, 710.4758600739439, -708.4, -745.13,
                                0x1p-1074, 0x1p-1022, 0x1.fffffffffffffp1023, 0x1p28, 1e22,
                                1.5707963267948966, 3.141592653589793,
                                // Nearest of all to a multiple of pi / 2.
                                6381956970095103.0 * 0x1p797};
  uint64_t state = 12345;
  const auto next = [&] { return state = state * 6364136223846793005u + 1442695040888963407u; };
  const auto unit = [&] { return static_cast<double>(next() >> 11) * 0x1p-52 - 1; };
  for (int i = 0; i < 4000; ++i) {
    values.push_back(std::bit_cast<double>(next() ^ next() >> 32));
    for (const double width : {1.0, 2.0, 8.0, 750.0, 1e5}) values.push_back(width * unit());
    values.push_back(1 + 1e-3 * unit());
    values.push_back(std::ldexp(unit(), static_cast<int>(60 * unit())));
  }
  return values;
}

struct WideCase {
  Fn fn;
  long double (*truth)(long double);
};

TEST(GpuMathTest, FunctionsOfF64StayWithinFourUlp) {
  const WideCase kCases[] = {
      {Fn::kExp, std::exp},     {Fn::kExp2, std::exp2},   {Fn::kLog, std::log},
      {Fn::kLog2, std::log2},   {Fn::kSin, std::sin},     {Fn::kCos, std::cos},
      {Fn::kTan, std::tan},     {Fn::kTanh, std::tanh},   {Fn::kErf, std::erf},
      {Fn::kAsin, std::asin},   {Fn::kAcos, std::acos},   {Fn::kAtan, std::atan},
      {Fn::kSinh, std::sinh},   {Fn::kCosh, std::cosh},   {Fn::kAsinh, std::asinh},
      {Fn::kAcosh, std::acosh}, {Fn::kAtanh, std::atanh},
  };
  const std::vector<double> x = numbers_f64();
  for (const WideCase& c : kCases) {
    const std::vector<double> y = on_gpu(c.fn, {x});
    for (size_t i = 0; i < x.size(); ++i) {
      const long double truth = c.truth(x[i]);
      ASSERT_LE(ulp_error_f64(y[i], truth), kMaxUlp) << name(c.fn) << "(" << x[i] << ")";
      if (x[i] != 0 || truth != 0) continue;
      ASSERT_EQ(std::signbit(y[i]), std::signbit(truth)) << name(c.fn) << "(" << x[i] << ")";
    }
  }
}

TEST(GpuMathTest, BinaryFunctionsOfF64StayWithinFourUlp) {
  std::vector<double> a, b;
  const std::vector<double> numbers = numbers_f64();
  for (size_t i = 0; i + 1 < numbers.size(); ++i) {
    a.push_back(numbers[i]), b.push_back(numbers[i + 1]);
    a.push_back(std::fabs(std::fmod(numbers[i], 100))), b.push_back(std::fmod(numbers[i + 1], 300));
    a.push_back(1 + std::fmod(numbers[i], 1e-6)), b.push_back(std::fmod(numbers[i + 1], 1e8));
    a.push_back(std::fmod(numbers[i], 20)), b.push_back(std::trunc(std::fmod(numbers[i + 1], 30)));
  }
  const double specials[] = {0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, INFINITY, -INFINITY, NAN};
  for (const double first : specials) {
    for (const double second : specials) a.push_back(first), b.push_back(second);
  }
  for (const Fn fn : {Fn::kPow, Fn::kAtan2}) {
    const std::vector<double> y = on_gpu(fn, {a, b});
    for (size_t i = 0; i < y.size(); ++i) {
      const long double truth = fn == Fn::kPow ? std::pow(static_cast<long double>(a[i]), b[i])
                                               : std::atan2(static_cast<long double>(a[i]), b[i]);
      ASSERT_LE(ulp_error_f64(y[i], truth), kMaxUlp)
          << name(fn) << "(" << a[i] << ", " << b[i] << ") = " << y[i];
      if (truth != 0) continue;
      ASSERT_EQ(std::signbit(y[i]), std::signbit(truth))
          << name(fn) << "(" << a[i] << ", " << b[i] << ")";
    }
  }
}

struct Pairs {
  std::vector<float> a, b;
};

Pairs pairs() {
  Pairs out;
  uint32_t state = 12345;
  auto next = [&] { return state = state * 1664525u + 1013904223u; };
  for (int i = 0; i < 300000; ++i) {
    float a = std::bit_cast<float>(next()), b = std::bit_cast<float>(next());
    switch (i % 4) {
      case 0:
        break;  // any two floats
      case 1:
        a = std::fabs(std::fmod(a, 100.0f)), b = std::fmod(b, 50.0f);
        break;
      case 2:
        a = 1 + a * 1e-40f, b = std::fmod(b, 1e6f);
        break;
      default:
        a = std::fmod(a, 20.0f), b = std::trunc(std::fmod(b, 30.0f));
    }
    out.a.push_back(a);
    out.b.push_back(b);
  }
  const float specials[] = {0.0f, -0.0f, 1,     -1,       2,         -2, 3,
                            -3,   0.5f,  -0.5f, INFINITY, -INFINITY, NAN};
  for (float a : specials) {
    for (float b : specials) out.a.push_back(a), out.b.push_back(b);
  }
  return out;
}

void expect_accurate(Fn fn, double (*truth)(double, double)) {
  Pairs in = pairs();
  for (const HostTarget& target : runnable_targets()) {
    HostKernel kernel(
        map_kernel({DType::kF32, DType::kF32}, DType::kF32,
                   [&](Builder& b, std::vector<ValueId> x) { return b.binary(fn, x[0], x[1]); }),
        target);
    std::vector<float> y(in.a.size());
    run_map(kernel, {in.a.data(), in.b.data()}, y);
    for (size_t i = 0; i < y.size(); ++i) {
      double expected = truth(in.a[i], in.b[i]);
      ASSERT_LE(ulp_error(y[i], expected), kMaxUlp) << name(fn) << "(" << in.a[i] << ", " << in.b[i]
                                                    << ") = " << y[i] << ", expected " << expected;
      if (expected == 0) {
        ASSERT_EQ(std::signbit(y[i]), std::signbit(expected))
            << name(fn) << "(" << in.a[i] << ", " << in.b[i] << ")";
      }
    }
  }
}

// Of a sum with 1 only the sum's own digits are asked of erf; below 0 it has more of them than 1
// and erf(x) by themselves.
TEST(SummedErfTest, IsWithinTwoRoundingsOfTheSum) {
  std::vector<float> x = all_exponents(5003);
  for (float at = -6; at < 6; at += 1e-4f) x.push_back(at);
  for (const HostTarget& target : runnable_targets()) {
    HostKernel kernel(map_kernel({DType::kF32}, DType::kF32,
                                 [&](Builder& b, std::vector<ValueId> in) {
                                   const ValueId erf = b.unary(Fn::kErf, in[0]);
                                   const ValueId one =
                                       b.constant(DType::kF32, 1, b.type(erf).shape);
                                   return b.add(one, erf);
                                 }),
                      target);
    std::vector<float> y(x.size());
    run_map(kernel, {x.data()}, y);
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(y[i]));
        continue;
      }
      const double truth = std::erfc(-static_cast<double>(x[i]));
      ASSERT_NEAR(y[i], truth, 0x1p-22) << x[i];
      if (x[i] < 0 && x[i] > -5) {
        ASSERT_NEAR(y[i] / truth, 1, 1e-4) << x[i];
      }
      if (x[i] < -10) {
        ASSERT_EQ(y[i], 0) << x[i];
      }
    }
  }
}

TEST(BinaryMathTest, Pow) { expect_accurate(Fn::kPow, std::pow); }
TEST(BinaryMathTest, Atan2) { expect_accurate(Fn::kAtan2, std::atan2); }
TEST(BinaryMathTest, RemainderHasTheSignOfTheDividend) { expect_accurate(Fn::kRem, std::fmod); }

}  // namespace
}  // namespace tenon::codegen
