// Rearranging tiles of many shapes, packed rows and odd widths among them.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

using Shape = std::vector<int>;

int elements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>());
}

// Loads a tile of `shape` holding 1, 2, 3 …, applies `compute` and returns what it stored.
template <typename T>
std::vector<T> apply(DType dtype, const Shape& shape,
                     const std::function<ValueId(Builder&, ValueId)>& compute,
                     const HostTarget& target = detect_host()) {
  Builder b("shapes");
  ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype);
  ValueId out = compute(b, b.load({x, b.index(0)}, shape));
  std::vector<T> in(elements(shape)), got(elements(b.type(out).shape));
  b.store({y, b.index(0)}, out);
  std::iota(in.begin(), in.end(), T(1));
  HostKernel kernel(b.finish(), target);
  kernel({in.data(), got.data()});
  return got;
}

const std::vector<Shape>& matrices() {
  static const std::vector<Shape> kShapes = {{1, 1}, {6, 1},  {1, 7},   {5, 3},  {7, 4},  {3, 5},
                                             {8, 8}, {4, 16}, {16, 16}, {8, 24}, {6, 48}, {2, 33}};
  return kShapes;
}

TEST(ShapesTest, Transpose) {
  for (const HostTarget& target : runnable_targets()) {
    for (const Shape& shape : matrices()) {
      auto got = apply<float>(
          DType::kF32, shape, [](Builder& b, ValueId x) { return b.transpose(x); }, target);
      for (int i = 0; i < shape[0]; ++i) {
        for (int j = 0; j < shape[1]; ++j) {
          ASSERT_EQ(got[j * shape[0] + i], 1 + i * shape[1] + j) << shape[0] << "x" << shape[1];
        }
      }
    }
  }
}

TEST(ShapesTest, TransposeBytes) {
  for (const Shape& shape : {Shape{4, 4}, Shape{16, 8}, Shape{3, 5}, Shape{8, 16}}) {
    auto got =
        apply<uint8_t>(DType::kU8, shape, [](Builder& b, ValueId x) { return b.transpose(x); });
    for (int i = 0; i < elements(shape); ++i) {
      ASSERT_EQ(got[i % shape[1] * shape[0] + i / shape[1]], 1 + i);
    }
  }
}

TEST(ShapesTest, ReshapeKeepsRowMajorOrder) {
  const std::pair<Shape, Shape> cases[] = {
      {{24}, {6, 4}},  {{6, 4}, {24}},  {{6, 4}, {4, 6}}, {{1}, {}},       {{}, {1, 1}},
      {{2, 48}, {96}}, {{96}, {2, 48}}, {{5, 3}, {3, 5}}, {{16}, {16, 1}}, {{8, 24}, {64, 3}}};
  for (const auto& [from, to] : cases) {
    auto got =
        apply<float>(DType::kF32, from, [&](Builder& b, ValueId x) { return b.reshape(x, to); });
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], 1 + i);
  }
}

TEST(ShapesTest, Broadcast) {
  const std::pair<Shape, Shape> cases[] = {
      {{}, {7}},        {{1}, {5}},        {{7}, {3, 7}},    {{1, 7}, {3, 7}},
      {{3, 1}, {3, 7}}, {{3, 1}, {3, 4}},  {{4}, {3, 4}},    {{1, 1}, {3, 3}},
      {{48}, {2, 48}},  {{6, 1}, {6, 48}}, {{1, 3}, {5, 3}}, {{16, 1}, {16, 16}}};
  for (const auto& [from, to] : cases) {
    auto got =
        apply<float>(DType::kF32, from, [&](Builder& b, ValueId x) { return b.broadcast(x, to); });
    int columns = to.back();
    for (int i = 0; i < elements(to); ++i) {
      int row = from.size() == 2 && from[0] > 1 ? i / columns : 0;
      int column = !from.empty() && from.back() > 1 ? i % columns : 0;
      int width = from.empty() ? 1 : from.back();
      ASSERT_EQ(got[i], 1 + row * width + column) << i;
    }
  }
}

TEST(ShapesTest, SliceAndConcat) {
  auto got = apply<float>(DType::kF32, {6, 20}, [](Builder& b, ValueId x) {
    ValueId left = b.slice(x, {1, 2}, {3, 5}), right = b.slice(x, {0, 17}, {3, 3});
    ValueId wide = b.concat(std::vector{left, right}, 1);
    return b.concat(std::vector{wide, b.slice(x, {5, 0}, {1, 8})}, 0);
  });
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 8; ++j) {
      int row = i == 3 ? 5 : j < 5 ? i + 1 : i, column = i == 3 ? j : j < 5 ? j + 2 : j + 12;
      ASSERT_EQ(got[i * 8 + j], 1 + row * 20 + column) << i << " " << j;
    }
  }
  got = apply<float>(DType::kF32, {10}, [](Builder& b, ValueId x) {
    return b.concat(std::vector{b.slice(x, {7}, {3}), x, b.slice(x, {0}, {1})}, 0);
  });
  EXPECT_EQ(got, (std::vector<float>{8, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1}));
  got = apply<float>(DType::kF32, {4, 2}, [](Builder& b, ValueId x) {
    return b.concat(std::vector{b.slice(x, {1, 1}, {2, 1}), b.slice(x, {2, 0}, {2, 1})}, 1);
  });
  EXPECT_EQ(got, (std::vector<float>{4, 5, 6, 7}));
}

TEST(ShapesTest, ReduceBothAxes) {
  for (const Shape& shape : matrices()) {
    for (int axis : {0, 1}) {
      for (Fn fn : {Fn::kAdd, Fn::kMax, Fn::kMin}) {
        auto got = apply<float>(DType::kF32, shape,
                                [&](Builder& b, ValueId x) { return b.reduce(fn, x, axis); });
        ASSERT_EQ(got.size(), static_cast<size_t>(shape[1 - axis]));
        for (int kept = 0; kept < shape[1 - axis]; ++kept) {
          float expected = 0;
          for (int i = 0; i < shape[axis]; ++i) {
            float x = 1.0f + (axis == 0 ? i * shape[1] + kept : kept * shape[1] + i);
            if (i == 0)
              expected = x;
            else if (fn == Fn::kAdd)
              expected += x;
            else
              expected = fn == Fn::kMax ? std::max(expected, x) : std::min(expected, x);
          }
          ASSERT_EQ(got[kept], expected) << name(fn) << " axis " << axis;
        }
      }
    }
  }
}

TEST(ShapesTest, ReduceOtherTypes) {
  auto bits = apply<uint8_t>(DType::kU8, {13},
                             [](Builder& b, ValueId x) { return b.reduce(Fn::kOr, x, 0); });
  EXPECT_EQ(bits[0], 15);
  auto product = apply<int64_t>(DType::kI64, {11},
                                [](Builder& b, ValueId x) { return b.reduce(Fn::kMul, x, 0); });
  EXPECT_EQ(product[0], 39916800);
  auto all = apply<float>(DType::kF32, {9}, [](Builder& b, ValueId x) {
    ValueId below = b.less(x, b.constant(DType::kF32, 9.5));
    return b.cast(b.reduce(Fn::kAnd, below, 0), DType::kF32);
  });
  EXPECT_EQ(all[0], 1);
  auto half = apply<uint16_t>(DType::kBF16, {3}, [](Builder& b, ValueId x) {
    return b.bitcast(b.reduce(Fn::kAdd, b.cast(b.bitcast(x, DType::kU16), DType::kBF16), 0),
                     DType::kBF16);
  });
  EXPECT_EQ(half[0], 0x40c0);  // 1 + 2 + 3
}

TEST(ShapesTest, Iota) {
  for (int axis : {0, 1}) {
    auto got = apply<float>(DType::kF32, {5, 7}, [&](Builder& b, ValueId x) {
      return b.add(b.mul(x, b.constant(DType::kF32, 0)), b.iota(DType::kF32, {5, 7}, axis));
    });
    for (int i = 0; i < 35; ++i) ASSERT_EQ(got[i], axis == 0 ? i / 7 : i % 7);
  }
}

}  // namespace
}  // namespace tenon::codegen
