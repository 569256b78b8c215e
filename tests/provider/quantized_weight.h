// Random block-quantised weights, the nodes that decode them, and the product in float64: the
// judge of the end-to-end tests. Decoding here is written from the formats' definitions and shares
// nothing with the library.
#pragma once

#include <string>
#include <vector>

#include "onnx_model.h"

namespace tenon::testing {

double decode_e2m1(int code);  // 4 bits
double decode_e4m3(int code);  // 8 bits; 0x7f and 0xff are NaN

// NVFP4: W[n,k] = e2m1 code * e4m3 scale of 16 neighbours along k * one float.
struct Nvfp4Weight {
  Nvfp4Weight(int64_t rows, int64_t columns, unsigned seed = 1);

  int64_t n, k;
  Tensor codes;         // f4e2m1 [n, k]
  Tensor scales;        // f8e4m3fn [n, k/16]
  Tensor global_scale;  // f32 [1]

  double at(int64_t row, int64_t column) const;
  // Two DequantizeLinear, a Transpose: value `name` is f32 [k, n].
  void add_to(Graph& graph, const std::string& name, bool as_inputs = false) const;
};

// x [m, k] times the weight's transpose, plus what `error_bound` allows float32 accumulation.
struct Product {
  std::vector<double> values;      // [m, n]
  std::vector<double> magnitudes;  // the same sum over absolute values
};
Product multiply(const Tensor& x, const Nvfp4Weight& weight);

Tensor random_floats(std::vector<int64_t> dims, unsigned seed = 7);

// Fails the test when an element is farther off than float32 accumulation explains.
void expect_product(const Tensor& actual, const Product& expected, int64_t k);

}  // namespace tenon::testing
