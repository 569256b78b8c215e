#include "kernels/llvm/split_parts.h"

#include <algorithm>
#include <limits>

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;

Tile is_finite(Builder& b, Tile f32) {
  const double infinity = std::numeric_limits<double>::infinity();
  return b.compare(Fn::kLess,
                   {b.unary(Fn::kAbs, f32), b.constant(DType::kF32, infinity, b.type(f32).shape)});
}

Tile zero(Builder& b, Tile like) { return b.constant(DType::kF32, 0, b.type(like).shape); }

// Infinity times the zeros among the other side's smaller terms would be NaN: only the product of
// the two largest terms sees it.
Tile without_infinities(Builder& b, Tile term) {
  const Tile number = b.cast(term, DType::kF32);
  return b.cast(b.select({is_finite(b, number), number, zero(b, number)}), DType::kBF16);
}

}  // namespace

std::vector<Tile> split_bf16(Builder& b, Tile numbers, int parts) {
  const Tile top_half = b.integer_constant(DType::kI32, -0x10000, b.type(numbers).shape);
  const Tile finite = is_finite(b, numbers);
  std::vector<Tile> terms;
  Tile rest = b.select(finite, numbers, zero(b, numbers));
  for (int part = 0; part < parts; ++part) {
    const Tile bits = b.binary(Fn::kAnd, b.bitcast(rest, DType::kI32), top_half);
    const Tile head = b.bitcast(bits, DType::kF32);
    // Cutting the bits of a NaN could leave an infinity: what is not finite is cast as it came.
    const Tile term = part == 0 ? b.select(finite, head, numbers) : head;
    terms.push_back(b.cast(term, DType::kBF16));
    if (part + 1 < parts) rest = b.sub(rest, head);
  }
  return terms;
}

int bf16_parts(DType dtype) { return dtype == DType::kBF16 ? 1 : dtype == DType::kF16 ? 2 : 3; }

Tile dot_parts(Builder& b, Tile acc, const std::vector<Tile>& left,
               const std::vector<Tile>& right) {
  const int rows = static_cast<int>(left.size()), columns = static_cast<int>(right.size());
  std::vector<Tile> lower_left = left, lower_right = right;
  if (columns > 1) lower_left[0] = without_infinities(b, left[0]);
  if (rows > 1) lower_right[0] = without_infinities(b, right[0]);
  // Terms i and j have 8 * (i + j) bits less than the largest product.
  for (int order = std::min(2, rows + columns - 2); order > 0; --order) {
    for (int i = std::min(order, rows - 1); i >= 0 && order - i < columns; --i) {
      acc = b.dot(acc, lower_left[i], lower_right[order - i]);
    }
  }
  return b.dot(acc, left[0], right[0]);
}

}  // namespace tenon::kernels
