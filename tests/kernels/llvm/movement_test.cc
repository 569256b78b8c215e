// Concat, gathers, scatters and running sums: ops with a lowering of their own.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {
namespace {

HostTensor ramp(DType dtype, std::vector<int64_t> dims, double first = 0) {
  return HostTensor::from(dtype, std::move(dims),
                          [=](int64_t i) { return first + static_cast<double>(i); });
}

TEST(Concat, InnerAxisOfSymbolicSizes) {
  const TestGraph graph(R"(
graph main {
  input %x: f16[b,m]
  input %y: f16[b,n]
  %z: f16[b,m+n] = Concat(%x, %y) {axis=-1}
  output %z
}
)");
  const auto z = graph.run({ramp(DType::kF16, {3, 5}), ramp(DType::kF16, {3, 34}, 100)})[0];
  std::vector<double> expected;
  for (int row = 0; row < 3; ++row) {
    for (int i = 0; i < 5; ++i) expected.push_back(row * 5 + i);
    for (int i = 0; i < 34; ++i) expected.push_back(100 + row * 34 + i);
  }
  expect_near(z.numbers(), expected);
  EXPECT_EQ(graph.run({ramp(DType::kF16, {3, 0}), ramp(DType::kF16, {3, 2}, 7)})[0].numbers(),
            (std::vector<double>{7, 8, 9, 10, 11, 12}));
}

TEST(Concat, NibblesOnWholeBytes) {
  const auto z = run_graph(R"(
graph main {
  input %x: u4[2,4]
  input %y: u4[2,6]
  %z: u4[2,10] = Concat(%x, %y) {axis=1}
  output %z
}
)",
                           {ramp(DType::kU4, {2, 4}), ramp(DType::kU4, {2, 6}, 3)})[0];
  expect_near(z.numbers(), {0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14});
}

TEST(Concat, NibblesThatShareBytesAreRefused) {
  EXPECT_THROW(TestGraph(R"(
graph main {
  input %x: u4[2,3]
  input %y: u4[2,3]
  %z: u4[2,6] = Concat(%x, %y) {axis=1}
  output %z
}
)"),
               UserError);
}

TEST(Gather, ElementsAlongEitherAxis) {
  const auto data = ramp(DType::kF32, {3, 3}, 1);
  const auto indices = HostTensor::of(DType::kI64, {2, 3}, {1, 2, 0, 2, -3, 0});
  const std::string body =
      "graph main {\n input %x: f32[3,3]\n input %i: i64[2,3]\n"
      " %y: f32[2,3] = GatherElements(%x, %i) {axis=";
  const std::string tail = "}\n output %y\n}\n";
  expect_near(run_graph(body + "0" + tail, {data, indices})[0].numbers(), {4, 8, 3, 7, 2, 3});
  expect_near(run_graph(body + "1" + tail, {data, indices})[0].numbers(), {2, 3, 1, 6, 4, 4});
}

TEST(Gather, TuplesWithBatchAxes) {
  const auto data = ramp(DType::kI32, {2, 2, 2});
  const auto plain = run_graph(R"(
graph main {
  input %x: i32[2,2,2]
  input %i: i64[n,2]
  %y: i32[n,2] = GatherND(%x, %i)
  output %y
}
)",
                               {data, HostTensor::of(DType::kI64, {2, 2}, {0, 1, 1, -2})})[0];
  expect_near(plain.numbers(), {2, 3, 4, 5});
  const auto batched = run_graph(R"(
graph main {
  input %x: i32[2,2,2]
  input %i: i64[2,1]
  %y: i32[2,2] = GatherND(%x, %i) {batch_dims=1}
  output %y
}
)",
                                 {data, HostTensor::of(DType::kI64, {2, 1}, {1, 0})})[0];
  expect_near(batched.numbers(), {2, 3, 4, 5});
}

// Each coordinate of a tuple has its own bound.
TEST(Gather, TuplesAreCheckedPerAxis) {
  const TestGraph graph(R"(
graph main {
  input %x: f32[2,5]
  input %i: i64[1,2]
  %y: f32[1] = GatherND(%x, %i)
  output %y
}
)");
  const auto data = ramp(DType::kF32, {2, 5});
  expect_near(graph.run({data, HostTensor::of(DType::kI64, {1, 2}, {1, 4})})[0].numbers(), {9});
  EXPECT_THROW(graph.run({data, HostTensor::of(DType::kI64, {1, 2}, {4, 1})}), UserError);
}

TEST(Scatter, ElementsOverwriteAndAdd) {
  const auto data = ramp(DType::kF32, {1, 5}, 1);
  const auto indices = HostTensor::of(DType::kI64, {1, 3}, {1, 3, 1});
  const auto updates = HostTensor::of(DType::kF32, {1, 3}, {10, 20, 30});
  const auto text = [](const char* reduction) {
    return std::string(
               "graph main {\n input %x: f32[1,5]\n input %i: i64[1,3]\n"
               " input %u: f32[1,3]\n %y: f32[1,5] = ScatterElements(%x, %i, %u)"
               " {axis=1, reduction=\"") +
           reduction + "\"}\n output %y\n}\n";
  };
  const std::vector<HostTensor> inputs{data, indices, updates};
  expect_near(run_graph(text("none"), inputs)[0].numbers(), {1, 30, 3, 20, 5});
  expect_near(run_graph(text("add"), inputs)[0].numbers(), {1, 42, 3, 24, 5});
  expect_near(run_graph(text("max"), inputs)[0].numbers(), {1, 30, 3, 20, 5});
  expect_near(run_graph(text("min"), inputs)[0].numbers(), {1, 2, 3, 4, 5});
  expect_near(run_graph(text("mul"), inputs)[0].numbers(), {1, 600, 3, 80, 5});
}

TEST(Scatter, RowsByTuples) {
  const auto y =
      run_graph(R"(
graph main {
  input %x: f32[n,40]
  input %i: i64[k,1]
  input %u: f32[k,40]
  %y: f32[n,40] = ScatterND(%x, %i, %u) {reduction="add"}
  output %y
}
)",
                {ramp(DType::kF32, {4, 40}), HostTensor::of(DType::kI64, {3, 1}, {2, 0, 2}),
                 HostTensor::of(DType::kF32, {3, 40}, {1})})[0];
  std::vector<double> expected;
  for (int i = 0; i < 160; ++i) {
    const int row = i / 40;
    expected.push_back(i + (row == 2 ? 2 : row == 0 ? 1 : 0));
  }
  expect_near(y.numbers(), expected);
}

TEST(CumSum, EitherAxisBothWays) {
  const auto x = ramp(DType::kI64, {2, 3}, 1);
  const auto text = [](const char* axis, const char* attributes) {
    return std::string("graph main {\n input %x: i64[a,b]\n const %k: i64[] = hex:") + axis +
           "00000000000000\n %y: i64[a,b] = CumSum(%x, %k) {" + attributes + "}\n output %y\n}\n";
  };
  expect_near(run_graph(text("01", "reverse=0"), {x})[0].numbers(), {1, 3, 6, 4, 9, 15});
  expect_near(run_graph(text("00", "reverse=0"), {x})[0].numbers(), {1, 2, 3, 5, 7, 9});
  expect_near(run_graph(text("01", "exclusive=1"), {x})[0].numbers(), {0, 1, 3, 0, 4, 9});
  expect_near(run_graph(text("01", "reverse=1"), {x})[0].numbers(), {6, 5, 3, 15, 11, 6});
  expect_near(run_graph(text("01", "exclusive=1, reverse=1"), {x})[0].numbers(),
              {5, 3, 0, 11, 6, 0});
  const auto wide = run_graph(text("00", "reverse=0"), {ramp(DType::kI64, {3, 40})})[0].numbers();
  for (int i = 0; i < 40; ++i) ASSERT_EQ(wide[80 + i], i + (40 + i) + (80 + i));
}

TEST(TensorScatter, LinearAndCircular) {
  const auto text = [](const char* mode) {
    return std::string(
               "graph main {\n input %c: f32[b,2,5,3]\n input %u: f32[b,2,s,3]\n"
               " input %w: i64[b]\n %y: f32[b,2,5,3] = TensorScatter(%c, %u, %w) {mode=\"") +
           mode + "\"}\n output %y\n}\n";
  };
  const auto cache = HostTensor::of(DType::kF32, {2, 2, 5, 3}, {0});
  const auto update = ramp(DType::kF32, {2, 2, 2, 3}, 1);
  const auto expect_at = [&](const HostTensor& y, int start_0, int start_1) {
    std::vector<double> expected(60, 0);
    for (int b = 0; b < 2; ++b) {
      for (int m = 0; m < 2; ++m) {
        for (int s = 0; s < 2; ++s) {
          const int position = ((b == 0 ? start_0 : start_1) + s) % 5;
          for (int i = 0; i < 3; ++i) {
            expected[((b * 2 + m) * 5 + position) * 3 + i] = 1 + ((b * 2 + m) * 2 + s) * 3 + i;
          }
        }
      }
    }
    expect_near(y.numbers(), expected);
  };
  const TestGraph linear(text("linear")), circular(text("circular"));
  expect_at(linear.run({cache, update, HostTensor::of(DType::kI64, {2}, {3, 1})})[0], 3, 1);
  expect_at(circular.run({cache, update, HostTensor::of(DType::kI64, {2}, {4, 1})})[0], 4, 1);
  EXPECT_THROW(linear.run({cache, update, HostTensor::of(DType::kI64, {2}, {4, 1})}), UserError);
  EXPECT_THROW(linear.run({cache, update, HostTensor::of(DType::kI64, {2}, {-1, 1})}), UserError);
}

}  // namespace
}  // namespace tenon::kernels
