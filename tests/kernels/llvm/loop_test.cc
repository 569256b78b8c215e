#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {
namespace {

double wave(int64_t i) { return std::sin(0.37 * static_cast<double>(i)) * 3; }

HostTensor waves(DType dtype, std::vector<int64_t> dims) {
  return HostTensor::from(dtype, std::move(dims), wave);
}

TEST(Loop, SymbolicDimsThatAreOneBroadcast) {
  const TestGraph graph(R"(
graph main {
  input %x: f32[a,b]
  input %y: f32[c,d]
  %z: f32[broadcast(a,c),broadcast(b,d)] = tenon::Loop(%x, %y) body {
    input %p: f32[a,b]
    input %q: f32[c,d]
    %r: f32[broadcast(a,c),broadcast(b,d)] = Sub(%p, %q)
    output %r
  }
  output %z
}
)");
  for (auto [a, b, c, d] : std::vector<std::array<int64_t, 4>>{
           {5, 37, 5, 37}, {1, 37, 5, 37}, {5, 37, 1, 1}, {5, 1, 1, 37}, {1, 1, 5, 130}}) {
    const auto x = waves(DType::kF32, {a, b}), y = waves(DType::kF32, {c, d});
    const auto z = graph.run({x, y})[0];
    const int64_t n = std::max(a, c), m = std::max(b, d);
    ASSERT_EQ(z.dims, (std::vector<int64_t>{n, m}));
    const auto xs = x.numbers(), ys = y.numbers();
    std::vector<double> expected;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < m; ++j) {
        expected.push_back(static_cast<float>(xs[(a == 1 ? 0 : i) * b + (b == 1 ? 0 : j)]) -
                           static_cast<float>(ys[(c == 1 ? 0 : i) * d + (d == 1 ? 0 : j)]));
      }
    }
    expect_near(z.numbers(), expected, 1e-6);
  }
}

// The declared shape says that y has s rows or one: the Run says whether that is so.
TEST(Loop, SizesThatDoNotAgreeAreAnError) {
  const TestGraph graph(R"(
graph main {
  input %x: f32[b,s]
  input %y: f32[c]
  %z: f32[b,s] = tenon::Loop(%x, %y) body {
    input %p: f32[b,s]
    input %q: f32[c]
    %r: f32[b,s] = Add(%p, %q)
    output %r
  }
  output %z
}
)");
  const auto run = [&](int64_t columns, int64_t other) {
    const auto result = graph.run({waves(DType::kF32, {2, columns}), waves(DType::kF32, {other})});
    return result.size();
  };
  EXPECT_EQ(run(5, 1), 1u);
  EXPECT_EQ(run(5, 5), 1u);
  EXPECT_THROW(run(5, 3), UserError);
  EXPECT_THROW(run(1, 3), UserError);
}

TEST(Loop, SoftmaxOfAnyRowLength) {
  const TestGraph graph(R"(
graph main {
  input %x: f32[rows,n]
  %y: f32[rows,n] = tenon::Loop(%x) body {
    input %a: f32[rows,n]
    %m: f32[rows,1] = ReduceMax(%a) {axes=[1]}
    %s: f32[rows,n] = Sub(%a, %m)
    %e: f32[rows,n] = Exp(%s)
    %t: f32[rows,1] = ReduceSum(%e) {axes=[1]}
    %p: f32[rows,n] = Div(%e, %t)
    output %p
  }
  output %y
}
)");
  for (int64_t rows : {1, 3, 50}) {
    for (int64_t n : {1, 5, 16, 31, 64, 333}) {
      const auto x = waves(DType::kF32, {rows, n});
      const auto xs = x.numbers();
      std::vector<double> expected(rows * n);
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += std::exp(xs[r * n + i]);
        for (int64_t i = 0; i < n; ++i) expected[r * n + i] = std::exp(xs[r * n + i]) / sum;
      }
      expect_near(graph.run({x})[0].numbers(), expected, 1e-6);
    }
  }
}

// An f16 result cannot hold the f32 exponentials: a static row goes through scratch.
TEST(Loop, SoftmaxOfHalvesInAStaticRow) {
  const auto x = waves(DType::kF16, {7, 50});
  const auto y = run_graph(R"(
graph main {
  input %x: f16[7,50]
  %y: f16[7,50] = tenon::Loop(%x) body {
    input %a: f16[7,50]
    %m: f16[7,1] = ReduceMax(%a) {axes=[1]}
    %s: f16[7,50] = Sub(%a, %m)
    %e: f16[7,50] = Exp(%s)
    %t: f16[7,1] = ReduceSum(%e) {axes=[1]}
    %p: f16[7,50] = Div(%e, %t)
    output %p
  }
  output %y
}
)",
                           {x})[0];
  const auto xs = x.numbers();
  std::vector<double> expected(350);
  for (int r = 0; r < 7; ++r) {
    double sum = 0;
    for (int i = 0; i < 50; ++i) sum += std::exp(xs[r * 50 + i]);
    for (int i = 0; i < 50; ++i) expected[r * 50 + i] = std::exp(xs[r * 50 + i]) / sum;
  }
  expect_near(y.numbers(), expected, 1e-3);
}

TEST(Loop, LayerNormWithScaleAndBias) {
  const TestGraph graph(R"(
graph main {
  input %x: f32[b,s,96]
  input %g: f32[96]
  input %h: f32[96]
  const %eps: f32[] = hex:acc52737
  %y: f32[b,s,96], %mean: f32[b,s,1] = tenon::Loop(%x, %g, %h, %eps) body {
    input %a: f32[b,s,96]
    input %scale: f32[96]
    input %bias: f32[96]
    input %e: f32[]
    %m: f32[b,s,1] = ReduceMean(%a) {axes=[2]}
    %d: f32[b,s,96] = Sub(%a, %m)
    %q: f32[b,s,96] = Mul(%d, %d)
    %v: f32[b,s,1] = ReduceMean(%q) {axes=[2]}
    %w: f32[b,s,1] = Add(%v, %e)
    %r: f32[b,s,1] = Sqrt(%w)
    %n: f32[b,s,96] = Div(%d, %r)
    %o: f32[b,s,96] = Mul(%n, %scale)
    %p: f32[b,s,96] = Add(%o, %bias)
    output %p
    output %m
  }
  output %y
  output %mean
}
)");
  const auto x = waves(DType::kF32, {2, 9, 96});
  const auto g = waves(DType::kF32, {96}), h = waves(DType::kF32, {96});
  const auto xs = x.numbers(), gs = g.numbers(), hs = h.numbers();
  const auto outputs = graph.run({x, g, h});
  std::vector<double> expected, means;
  for (int64_t row = 0; row < 18; ++row) {
    double mean = 0, variance = 0;
    for (int i = 0; i < 96; ++i) mean += xs[row * 96 + i] / 96;
    for (int i = 0; i < 96; ++i) variance += std::pow(xs[row * 96 + i] - mean, 2) / 96;
    for (int i = 0; i < 96; ++i) {
      expected.push_back((xs[row * 96 + i] - mean) / std::sqrt(variance + 1e-5) * gs[i] + hs[i]);
    }
    means.push_back(mean);
  }
  expect_near(outputs[0].numbers(), expected, 1e-5);
  expect_near(outputs[1].numbers(), means, 1e-5);
}

TEST(Loop, ReductionOverAnOuterAxis) {
  const TestGraph graph(R"(
graph main {
  input %x: f32[b,s,n]
  %y: f32[b,1,n], %z: f32[b,1,n] = tenon::Loop(%x) body {
    input %a: f32[b,s,n]
    %m: f32[b,1,n] = ReduceMean(%a) {axes=[1]}
    %t: f32[b,1,n] = ReduceMax(%a) {axes=[1]}
    output %m
    output %t
  }
  output %y
  output %z
}
)");
  for (int64_t n : {1, 7, 64, 70}) {
    const auto x = waves(DType::kF32, {3, 11, n});
    const auto xs = x.numbers();
    std::vector<double> mean(3 * n), top(3 * n, -1e30);
    for (int64_t b = 0; b < 3; ++b) {
      for (int64_t s = 0; s < 11; ++s) {
        for (int64_t i = 0; i < n; ++i) {
          mean[b * n + i] += xs[(b * 11 + s) * n + i] / 11;
          top[b * n + i] = std::max(top[b * n + i], xs[(b * 11 + s) * n + i]);
        }
      }
    }
    const auto outputs = graph.run({x});
    expect_near(outputs[0].numbers(), mean, 1e-5);
    expect_near(outputs[1].numbers(), top, 1e-6);
  }
}

TEST(Loop, ReductionOverSeveralAxesThatAreNotNeighbours) {
  const TestGraph graph(R"(
graph main {
  input %x: f32[a,b,c]
  %y: f32[1,b,1] = tenon::Loop(%x) body {
    input %p: f32[a,b,c]
    %m: f32[1,b,1] = ReduceSum(%p) {axes=[0,2]}
    output %m
  }
  output %y
}
)");
  const auto x = waves(DType::kF32, {4, 5, 19});
  const auto xs = x.numbers();
  std::vector<double> expected(5);
  for (int64_t i = 0; i < 4 * 5 * 19; ++i) expected[i / 19 % 5] += xs[i];
  expect_near(graph.run({x})[0].numbers(), expected, 1e-5);
}

// Few results of many elements: partial results first, so that threads have something to share.
TEST(Loop, LongReductionsAreSplit) {
  const TestGraph graph(R"(
graph main {
  input %x: f16[n]
  input %s: f32[]
  %y: f32[1], %z: f16[1], %w: f32[1] = tenon::Loop(%x, %s) body {
    input %a: f16[n]
    input %b: f32[]
    %f: f32[n] = Cast(%a)
    %q: f32[n] = Mul(%f, %b)
    %m: f32[1] = ReduceMean(%q) {axes=[0]}
    %t: f16[1] = ReduceMax(%a) {axes=[0]}
    %r: f32[1] = Add(%m, %b)
    %v: f32[1] = Sqrt(%r)
    output %m
    output %t
    output %v
  }
  output %y
  output %z
  output %w
}
)");
  for (int64_t n : {1, 100, 16384, 16385, 40000, 300000}) {
    const auto x = waves(DType::kF16, {n});
    const auto xs = x.numbers();
    double mean = 0, top = -1e30;
    for (double value : xs) {
      mean += value * 20 / static_cast<double>(n);
      top = std::max(top, value);
    }
    TestContext context(graph.graph, {x, HostTensor::of(DType::kF32, {}, {20})});
    graph.executable->run(context);
    const bool depends_on_vectors = n > 20000 && n < 100000;
    if (!test_settings().gpu && !depends_on_vectors) {
      EXPECT_EQ(context.parallel_calls > 0, n > 100000) << n;
    }
    const auto outputs = context.take_outputs();
    expect_near(outputs[0].numbers(), {mean}, 1e-5);
    expect_near(outputs[1].numbers(), {top});
    expect_near(outputs[2].numbers(), {std::sqrt(mean + 20)}, 1e-5);
  }
}

TEST(Loop, ReductionOfNothingGivesTheNeutralElement) {
  const TestGraph graph(R"(
graph main {
  input %x: f32[2,n]
  %y: f32[2,1], %z: f32[2,1] = tenon::Loop(%x) body {
    input %p: f32[2,n]
    %s: f32[2,1] = ReduceSum(%p) {axes=[1]}
    %m: f32[2,1] = ReduceMax(%p) {axes=[1]}
    output %s
    output %m
  }
  output %y
  output %z
}
)");
  const auto outputs = graph.run({HostTensor{DType::kF32, {2, 0}, {}}});
  expect_near(outputs[0].numbers(), {0, 0});
  EXPECT_EQ(outputs[1].numbers()[0], -std::numeric_limits<double>::infinity());
}

TEST(Loop, ArgMaxTakesTheFirstOrLastOfEquals) {
  const TestGraph graph(R"(
graph main {
  input %x: f32[r,n]
  %y: i64[r,1], %z: i64[r,1], %w: i64[r,1] = tenon::Loop(%x) body {
    input %p: f32[r,n]
    %a: i64[r,1] = ArgMax(%p) {axis=1}
    %b: i64[r,1] = ArgMax(%p) {axis=1, select_last_index=1}
    %c: i64[r,1] = ArgMin(%p) {axis=1}
    output %a
    output %b
    output %c
  }
  output %y
  output %z
  output %w
}
)");
  const auto x = HostTensor::from(DType::kF32, {2, 70}, [](int64_t i) {
    const int64_t column = i % 70;
    return column == 21 || column == 53 || column == 68 ? 9.0 : column == 33 ? -9.0 : 1.0;
  });
  const auto outputs = graph.run({x});
  expect_near(outputs[0].numbers(), {21, 21});
  expect_near(outputs[1].numbers(), {68, 68});
  expect_near(outputs[2].numbers(), {33, 33});
}

TEST(Loop, TransposeKeepsEveryBit) {
  const TestGraph graph(R"(
graph main {
  input %x: f16[a,b,c]
  %y: f16[c,a,b] = tenon::Loop(%x) body {
    input %p: f16[a,b,c]
    %q: f16[c,a,b] = Transpose(%p) {perm=[2,0,1]}
    output %q
  }
  output %y
}
)");
  HostTensor x{DType::kF16, {3, 20, 17}, std::vector<std::byte>(3 * 20 * 17 * 2)};
  auto* words = reinterpret_cast<uint16_t*>(x.bytes.data());
  for (int i = 0; i < 3 * 20 * 17; ++i) words[i] = static_cast<uint16_t>(i * 61 + 0x7c00);
  const auto y = graph.run({x})[0];
  const auto* moved = reinterpret_cast<const uint16_t*>(y.bytes.data());
  for (int c = 0; c < 17; ++c) {
    for (int ab = 0; ab < 60; ++ab) ASSERT_EQ(moved[c * 60 + ab], words[ab * 17 + c]);
  }
}

TEST(Loop, SliceWithNegativeStepAndPad) {
  const auto outputs = run_graph(R"(
graph main {
  input %x: f32[n]
  input %f: f32[]
  %y: f32[n], %z: f32[n] = tenon::Loop(%x, %f) body {
    input %p: f32[n]
    input %v: f32[]
    %q: f32[n] = tenon::Slice(%p) {starts=["n-1"], steps=[-1]}
    %s: f32[n-2] = tenon::Slice(%p) {starts=["2"], steps=[1]}
    %t: f32[n] = tenon::Pad(%s, %v) {pads_begin=["1"]}
    %u: f32[n] = Neg(%t)
    output %q
    output %u
  }
  output %y
  output %z
}
)",
                                 {HostTensor::of(DType::kF32, {6}, {1, 2, 3, 4, 5, 6}),
                                  HostTensor::of(DType::kF32, {}, {50})});
  expect_near(outputs[0].numbers(), {6, 5, 4, 3, 2, 1});
  expect_near(outputs[1].numbers(), {-50, -3, -4, -5, -6, -50});
}

TEST(Loop, IntegerArithmetic) {
  const auto outputs = run_graph(R"(
graph main {
  input %x: i32[n]
  input %y: i32[n]
  %a: i32[n], %b: i32[n], %c: i32[n], %d: bool[n] = tenon::Loop(%x, %y) body {
    input %p: i32[n]
    input %q: i32[n]
    %a: i32[n] = Div(%p, %q)
    %b: i32[n] = Mod(%p, %q)
    %c: i32[n] = Mod(%p, %q) {fmod=1}
    %d: bool[n] = Less(%p, %q)
    output %a
    output %b
    output %c
    output %d
  }
  output %a
  output %b
  output %c
  output %d
}
)",
                                 {HostTensor::of(DType::kI32, {5}, {7, -7, 7, -7, 2}),
                                  HostTensor::of(DType::kI32, {5}, {2, 2, -2, 3, 10})});
  expect_near(outputs[0].numbers(), {3, -3, -3, -2, 0});
  expect_near(outputs[1].numbers(), {1, 1, -1, 2, 2});
  expect_near(outputs[2].numbers(), {1, -1, 1, -1, 2});
  expect_near(outputs[3].numbers(), {0, 1, 0, 1, 1});
}

TEST(Loop, IntegerPower) {
  const auto outputs = run_graph(R"(
graph main {
  input %x: i32[n]
  input %y: i32[n]
  %e: i32[n] = tenon::Loop(%x, %y) body {
    input %p: i32[n]
    input %q: i32[n]
    %e: i32[n] = Pow(%p, %q)
    output %e
  }
  output %e
}
)",
                                 {HostTensor::of(DType::kI32, {5}, {7, -7, 7, -7, 2}),
                                  HostTensor::of(DType::kI32, {5}, {2, 2, -2, 3, 10})});
  expect_near(outputs[0].numbers(), {49, 49, 0, -343, 1024});
}

TEST(Loop, PositionsAndDims) {
  const auto outputs = run_graph(R"(
graph main {
  input %x: f32[n,m]
  %y: f32[n,m], %z: i64[n,m] = tenon::Loop(%x) body {
    input %p: f32[n,m]
    %r: i64[n,1] = tenon::Position() {axis=0}
    %c: i64[1,m] = tenon::Position() {axis=1}
    %k: bool[n,m] = GreaterOrEqual(%r, %c)
    %d: f32[] = tenon::DimValue() {dim="m"}
    %t: f32[n,m] = Where(%k, %p, %d)
    %s: i64[n,m] = Add(%r, %c)
    output %t
    output %s
  }
  output %y
  output %z
}
)",
                                 {HostTensor::of(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6})});
  expect_near(outputs[0].numbers(), {1, 3, 3, 4, 5, 3});
  expect_near(outputs[1].numbers(), {0, 1, 2, 1, 2, 3});
}

// Nibbles with a scale per block: rows of odd and even length, blocks smaller and larger than
// tiles.
TEST(Loop, BlockDequantizationOfNibbles) {
  for (const auto& [n, block] : std::vector<std::pair<int64_t, int64_t>>{
           {64, 16}, {96, 32}, {160, 16}, {256, 128}, {15, 5}, {36, 6}}) {
    for (DType dtype : {DType::kI4, DType::kU4, DType::kF4E2M1}) {
      const std::string type(name(dtype)), size = std::to_string(n);
      const std::string blocks = std::to_string(n / block);
      const std::string text =
          "graph main {\n input %x: " + type + "[r," + size + "]\n input %s: f32[r," + blocks +
          "]\n %y: f32[r," + size +
          "] = tenon::Loop(%x, %s) body {\n"
          " input %a: " +
          type + "[r," + size + "]\n input %b: f32[r," + blocks + "]\n" + " %c: f32[r," + size +
          "] = Cast(%a)\n %d: f32[r," + size +
          "] = tenon::BlockExpand(%b) {axis=1, block=" + std::to_string(block) + "}\n" +
          " %e: f32[r," + size + "] = Mul(%c, %d)\n output %e\n }\n output %y\n}\n";
      const auto x = HostTensor::from(
          dtype, {5, n}, [](int64_t i) { return static_cast<double>(i * 7 % 11 % 7); });
      const auto s = waves(DType::kF32, {5, n / block});
      const auto xs = x.numbers(), ss = s.numbers();
      std::vector<double> expected;
      for (int64_t i = 0; i < 5 * n; ++i) expected.push_back(xs[i] * ss[i / block]);
      expect_near(run_graph(text, {x, s})[0].numbers(), expected, 1e-6);
    }
  }
}

TEST(Loop, QuantizeToNibblesWithOddRows) {
  for (int64_t n : {7, 8, 33}) {
    for (DType dtype : {DType::kI4, DType::kU2, DType::kF4E2M1}) {
      const std::string type(name(dtype)), size = std::to_string(n);
      const std::string text = "graph main {\n input %x: f32[r," + size + "]\n input %s: f32[" +
                               size + "]\n %y: " + type + "[r," + size +
                               "] = tenon::Loop(%x, %s) body {\n" + " input %a: f32[r," + size +
                               "]\n input %b: f32[" + size + "]\n" + " %c: f32[r," + size +
                               "] = Mul(%a, %b)\n" + " %d: " + type + "[r," + size +
                               "] = tenon::Quantize(%c)\n output %d\n }\n output %y\n}\n";
      const auto x = waves(DType::kF32, {3, n});
      const auto s = HostTensor::of(DType::kF32, {n}, {1, 2, 0.5});
      const auto xs = x.numbers();
      std::vector<double> expected;
      for (int64_t i = 0; i < 3 * n; ++i) {
        const double scaled = static_cast<float>(xs[i]) * (std::vector{1.0, 2.0, 0.5}[i % n % 3]);
        const uint64_t code =
            is_integer(dtype)
                ? encode(dtype, std::clamp(std::nearbyint(scaled), dtype == DType::kU2 ? 0.0 : -8.0,
                                           dtype == DType::kU2 ? 3.0 : 7.0))
                : encode(dtype, scaled);
        expected.push_back(decode(dtype, code));
      }
      expect_near(run_graph(text, {x, s})[0].numbers(), expected);
    }
  }
}

TEST(Loop, CastsAgreeWithTheScalarConversions) {
  const std::vector<double> values{
      0,    1,    -1,    0.5,      1.5,       2.5,   -2.5,  3.7,  100,       -100, 127.5,
      255,  300,  448,   500,      57344,     65504, 70000, 1e6,  -1e6,      3e9,  -3e9,
      1e19, 1e30, -1e30, INFINITY, -INFINITY, NAN,   1e-3,  1e-8, 0.0078125, 6,    7};
  const int64_t n = static_cast<int64_t>(values.size());
  for (DType to :
       {DType::kI8,     DType::kU8,         DType::kI16,        DType::kU16,    DType::kI32,
        DType::kU32,    DType::kI64,        DType::kU64,        DType::kBool,   DType::kI4,
        DType::kU4,     DType::kF16,        DType::kBF16,       DType::kF64,    DType::kF8E4M3FN,
        DType::kF8E5M2, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ, DType::kF8E8M0, DType::kF4E2M1}) {
    for (int saturate : {0, 1}) {
      const std::string text =
          "graph main {\n input %x: f32[n]\n %y: " + std::string(name(to)) +
          "[n] = tenon::Loop(%x) body {\n input %a: f32[n]\n %b: " + std::string(name(to)) +
          "[n] = Cast(%a) {saturate=" + std::to_string(saturate) +
          "}\n output %b\n }\n output %y\n}\n";
      const auto x = HostTensor::of(DType::kF32, {n}, values);
      const auto y = run_graph(text, {x})[0];
      const auto xs = x.numbers();
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t expected = encode(to, xs[i], {saturate != 0, RoundMode::kUp});
        const uint64_t got = load_code(to, y.bytes.data(), i);
        if (is_floating(to) && std::isnan(decode(to, expected))) {
          EXPECT_TRUE(std::isnan(decode(to, got))) << name(to) << " of " << xs[i];
        } else {
          EXPECT_EQ(got, expected) << name(to) << " of " << xs[i] << ", saturate " << saturate;
        }
      }
    }
  }
}

TEST(Loop, GatherOfADequantizedTable) {
  const auto table =
      HostTensor::from(DType::kI8, {10, 24}, [](int64_t i) { return (i * 37) % 100 - 50; });
  const auto scale = waves(DType::kF32, {10, 3});
  const auto outputs =
      run_graph(R"(
graph main {
  input %t: i8[10,24]
  input %s: f32[10,3]
  input %i: i64[b,n]
  %y: f32[b,n,24] = tenon::Loop(%t, %s, %i) body {
    input %a: i8[10,24]
    input %c: f32[10,3]
    input %k: i64[b,n]
    %g: i8[b,n,24] = Gather(%a, %k) {axis=0}
    %e: f32[10,24] = tenon::BlockExpand(%c) {axis=1, block=8}
    %h: f32[b,n,24] = Gather(%e, %k) {axis=0}
    %f: f32[b,n,24] = Cast(%g)
    %r: f32[b,n,24] = Mul(%f, %h)
    output %r
  }
  output %y
}
)",
                {table, scale, HostTensor::of(DType::kI64, {2, 2}, {3, 9, 0, -1})});
  std::vector<double> expected;
  for (int row : {3, 9, 0, 9}) {
    for (int i = 0; i < 24; ++i) {
      expected.push_back(table.numbers()[row * 24 + i] * scale.numbers()[row * 3 + i / 8]);
    }
  }
  expect_near(outputs[0].numbers(), expected, 1e-6);
}

}  // namespace
}  // namespace tenon::kernels
