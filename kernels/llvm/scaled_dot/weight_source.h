// A constant weight as the model stores it: what packing reads from, whatever layout it makes.
#pragma once

#include <span>

#include "kernels/llvm/scaled_dot/problem.h"

namespace tenon::kernels {

// Type of the scales that count; kUndefined: unscaled.
DType packed_scale_type(const ir::Graph& graph, const ir::BlockScale& scale);
// The same for the zero point: nibbles may hide in bytes.
DType stored_zero_type(const ir::Graph& graph, const ScaledDotProblem& problem);

// Elements of a stored matrix, from one column (N) and from one k or block of k to the next.
struct ElementStrides {
  int64_t column = 0, k = 0;
};

// Reads scales and zero points by (k block, column), whatever their layout in the file. Scales of
// two levels are read as their rounded products.
class ScaleReader {
 public:
  static ScaleReader scales(const ir::Graph& graph, const ScaledDotProblem& problem);
  static ScaleReader zeros(const ir::Graph& graph, const ScaledDotProblem& problem);

  // In the type of packed_scale_type or stored_zero_type.
  uint64_t code(int64_t block, int64_t column) const { return code_of(stored(block, column)); }
  // Codes of a column's blocks side by side as the file has them; null where they are not.
  const std::byte* column(int64_t column) const;
  double number(int64_t block, int64_t column) const { return number_of(stored(block, column)); }

  // In two steps: what the file has, and what it stands for.
  uint64_t stored(int64_t block, int64_t column) const;
  uint64_t code_of(uint64_t stored) const { return products_.empty() ? stored : products_[stored]; }
  double number_of(uint64_t stored) const;
  // Where the file has it: elements of `stored_type` from one column or block to the next.
  DType stored_type() const { return type_; }
  std::span<const std::byte> stored_bytes() const { return {tensor_->data, tensor_->bytes}; }
  ElementStrides strides() const;

 private:
  ScaleReader(const ScaledDotProblem& problem, ir::TensorPtr tensor, DType type);

  ir::TensorPtr tensor_;
  DType type_;  // as stored
  const ScaledDotProblem& problem_;
  int64_t blocks_ = 0, row_ = 0;
  DType rounded_ = DType::kUndefined;
  std::vector<uint16_t> products_;  // codes of `rounded_` by stored code; empty: one level
};

bool contains_infinity(const ir::Tensor& tensor, DType type);
// Whether a scale that counts is infinite.
bool has_infinite_scale(const ir::Graph& graph, const ScaledDotProblem& problem);
// Whether one is 2^100 or more, or NaN.
bool has_huge_scale(const ir::Graph& graph, const ScaledDotProblem& problem);

// Elements from one row of K to the next: MatMulNBits pads its rows to whole blocks.
int64_t stored_row(const ir::Graph& graph, const ScaledDotProblem& problem);
ElementStrides element_strides(const ScaledDotProblem& problem, int64_t row);
// Number of an element, with rows of K of that length.
int64_t element_index(const ScaledDotProblem& problem, int64_t row, int64_t k, int64_t n);

// A packed constant to be filled, and its place among those of a lowered node.
PackedConstant zeroed(size_t bytes);
BufferArgument keep(Lowered& lowered, PackedConstant constant);

// The model's own copy of the weight is not needed beside the packed one.
void replace_weight(const ScaledDotProblem& problem, Lowered& lowered);

// Why the scales and zero points of a weight cannot be packed; yes where there are none.
Support has_constant_scales(const ir::Graph& graph, const ScaledDotProblem& problem);

}  // namespace tenon::kernels
