#include "quantized_weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tenon::testing {

double decode_e2m1(int code) {
  static constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

double decode_e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double sign = (code & 128) != 0 ? -1 : 1;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa / 8.0, -6);
  return sign * std::ldexp(1 + mantissa / 8.0, exponent - 7);
}

Nvfp4Weight::Nvfp4Weight(int64_t rows, int64_t columns, unsigned seed)
    : n(rows),
      k(columns),
      codes{kFp4, {rows, columns}, {}},
      scales{kFp8, {rows, columns / 16}, {}},
      global_scale(floats({1}, {0.0125F})) {
  std::mt19937 random(seed);
  for (int64_t i = 0; i < rows * columns / 2; ++i) codes.bytes += static_cast<char>(random());
  // Positive and finite: what a quantiser writes.
  for (int64_t i = 0; i < rows * (columns / 16); ++i) {
    scales.bytes += static_cast<char>(0x30 + random() % 0x20);
  }
}

double Nvfp4Weight::at(int64_t row, int64_t column) const {
  const int64_t element = row * k + column;
  const int byte = static_cast<unsigned char>(codes.bytes[static_cast<size_t>(element / 2)]);
  const int code = element % 2 == 0 ? byte & 15 : byte >> 4;
  const int64_t block = row * (k / 16) + column / 16;
  const int scale = static_cast<unsigned char>(scales.bytes[static_cast<size_t>(block)]);
  return decode_e2m1(code) * decode_e4m3(scale) * global_scale.at(0);
}

void Nvfp4Weight::add_to(Graph& graph, const std::string& name, bool as_inputs) const {
  const auto add = as_inputs ? &Graph::default_input : &Graph::constant;
  (graph.*add)(name + "_codes", codes);
  (graph.*add)(name + "_scales", scales);
  (graph.*add)(name + "_global", global_scale);
  graph.node("DequantizeLinear", {name + "_scales", name + "_global"}, {name + "_f32_scales"});
  graph.node("DequantizeLinear", {name + "_codes", name + "_f32_scales"}, {name + "_f32"},
             {{{"axis", -1}, {"block_size", 16}}});
  graph.node("Transpose", {name + "_f32"}, {name}, {{{"perm", std::vector<int64_t>{1, 0}}}});
}

Product multiply(const Tensor& x, const Nvfp4Weight& weight) {
  const int64_t m = x.elements() / weight.k;
  Product product;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < weight.n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t c = 0; c < weight.k; ++c) {
        const double term = double{x.at(static_cast<size_t>(i * weight.k + c))} * weight.at(j, c);
        sum += term;
        magnitude += std::abs(term);
      }
      product.values.push_back(sum);
      product.magnitudes.push_back(magnitude);
    }
  }
  return product;
}

Tensor random_floats(std::vector<int64_t> dims, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor tensor = filled(std::move(dims), 0);
  auto* values = reinterpret_cast<float*>(tensor.bytes.data());
  for (int64_t i = 0; i < tensor.elements(); ++i) values[i] = normal(random);
  return tensor;
}

void expect_product(const Tensor& actual, const Product& expected, int64_t k) {
  ASSERT_EQ(actual.elements(), static_cast<int64_t>(expected.values.size()));
  const double unit = std::sqrt(static_cast<double>(k)) * std::ldexp(1, -22);
  for (size_t i = 0; i < expected.values.size(); ++i) {
    ASSERT_NEAR(actual.at(i), expected.values[i], unit * expected.magnitudes[i] + 1e-30)
        << "element " << i;
  }
}

}  // namespace tenon::testing
