#include "kernels/llvm/split_parts.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/convert.h"
#include "codegen/compile.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::ValueId;

constexpr int kCount = 16;

void run(const codegen::Kernel& kernel, std::vector<void*> buffers) {
  const auto code = codegen::compile_host(std::span(&kernel, 1), codegen::detect_host());
  code->function(kernel.name)(buffers.data(), nullptr, 0, 1);
}

std::array<std::vector<uint16_t>, 3> split(std::vector<float>& numbers) {
  Builder b("split");
  const ValueId x = b.buffer("x", DType::kF32);
  std::vector<ValueId> outputs;
  for (const char* name : {"hi", "mid", "lo"}) outputs.push_back(b.buffer(name, DType::kBF16));
  const std::vector<Tile> terms = split_bf16(b, b.load({x, b.index(0)}, {kCount}), 3);
  for (size_t i = 0; i < terms.size(); ++i) b.store({outputs[i], b.index(0)}, terms[i]);
  std::array<std::vector<uint16_t>, 3> codes;
  for (auto& part : codes) part.resize(kCount);
  run(b.finish(), {numbers.data(), codes[0].data(), codes[1].data(), codes[2].data()});
  return codes;
}

double number(const std::vector<uint16_t>& codes, size_t i) {
  return load_element(DType::kBF16, codes.data(), static_cast<int64_t>(i));
}

TEST(SplitParts, ThreeTermsHoldEveryBit) {
  std::mt19937 random(7);
  std::vector<float> numbers = {0.0f, -0.0f, 1.0f, 0x1.fffffep127f, -0x1.000002p-80f};
  while (numbers.size() < kCount) {
    numbers.push_back(std::ldexp(static_cast<float>(random() | 1), -40) * (random() % 2 ? 1 : -1));
  }
  const auto parts = split(numbers);
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(number(parts[0], i) + number(parts[1], i) + number(parts[2], i), numbers[i]);
    EXPECT_LE(std::abs(number(parts[1], i)), std::abs(numbers[i]) / 128);
    EXPECT_LE(std::abs(number(parts[2], i)), std::abs(numbers[i]) / 32768);
  }
}

TEST(SplitParts, WhatIsNotFiniteStandsInTheFirstTermAlone) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> numbers(kCount, 1.0f);
  numbers[0] = infinity;
  numbers[1] = -infinity;
  numbers[2] = std::bit_cast<float>(0x7f800001u);  // a NaN whose upper half is infinity's
  const auto parts = split(numbers);
  EXPECT_EQ(number(parts[0], 0), infinity);
  EXPECT_EQ(number(parts[0], 1), -infinity);
  EXPECT_TRUE(std::isnan(number(parts[0], 2)));
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(number(parts[1], i), 0);
    EXPECT_EQ(number(parts[2], i), 0);
  }
}

// [16, 16] x [16, 16] as f32 numbers would give it.
std::vector<float> multiply(std::vector<float>& left, std::vector<float>& right) {
  Builder b("multiply");
  const ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32),
                z = b.buffer("z", DType::kF32);
  const std::vector<int> shape{kCount, kCount};
  const auto terms = [&](ValueId buffer) {
    return split_bf16(b, b.load({buffer, b.index(0)}, shape), 3);
  };
  b.store({z, b.index(0)}, dot_parts(b, b.constant(DType::kF32, 0, shape), terms(x), terms(y)));
  std::vector<float> product(kCount * kCount);
  run(b.finish(), {left.data(), right.data(), product.data()});
  return product;
}

TEST(SplitParts, ProductsAreThoseOfF32) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> left(kCount * kCount), right(kCount * kCount);
  for (float& x : left) x = normal(random);
  for (float& x : right) x = normal(random);
  left[0] = std::numeric_limits<float>::infinity();  // row 0 times whatever is not 0
  right[0] = 2;
  const std::vector<float> product = multiply(left, right);
  EXPECT_EQ(product[0], std::numeric_limits<float>::infinity());
  for (int i = 1; i < kCount; ++i) {
    for (int j = 0; j < kCount; ++j) {
      double expected = 0, size = 0;
      for (int k = 0; k < kCount; ++k) {
        const double term = static_cast<double>(left[i * kCount + k]) * right[k * kCount + j];
        expected += term;
        size += std::abs(term);
      }
      EXPECT_NEAR(product[i * kCount + j], expected, 1e-6 * size) << i << ' ' << j;
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
