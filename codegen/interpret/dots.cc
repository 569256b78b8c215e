// Products: one fma per k, in order, vectors of n at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "codegen/interpret/elements.h"
#include "codegen/interpret/tile_data.h"

namespace tenon::codegen {

namespace {

// sums[n] += factor * row[n]
using AddRow = void (*)(float* sums, float factor, const float* row, int n);

void add_row(float* sums, float factor, const float* row, int n) {
  for (int i = 0; i < n; ++i) sums[i] = std::fma(factor, row[i], sums[i]);
}

#ifdef __x86_64__
// Without the instruction fma is a call of libm's.
[[gnu::target("avx2,fma")]] void add_row_fma(float* __restrict sums, float factor,
                                             const float* __restrict row, int n) {
  for (int i = 0; i < n; ++i) sums[i] = __builtin_fmaf(factor, row[i], sums[i]);
}
AddRow best_add_row() { return __builtin_cpu_supports("fma") ? add_row_fma : add_row; }
#else
AddRow best_add_row() { return add_row; }
#endif

void add_row(double* sums, double factor, const double* row, int n) {
  for (int i = 0; i < n; ++i) sums[i] = std::fma(factor, row[i], sums[i]);
}

template <typename Integer>
requires std::is_integral_v<Integer>
void add_row(Integer* sums, Integer factor, const Integer* row, int n) {
  using Wrapping = std::make_unsigned_t<Integer>;
  for (int i = 0; i < n; ++i) {
    sums[i] = static_cast<Integer>(static_cast<Wrapping>(sums[i]) +
                                   static_cast<Wrapping>(factor) * static_cast<Wrapping>(row[i]));
  }
}

// The elements of an operand in the type of the sums.
template <typename T>
std::vector<T> converted(const TileData& x) {
  std::vector<T> out(static_cast<size_t>(x.elements()));
  visit_element(x.dtype(), [&]<typename From>() {
    const From* from = x.data<From>();
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(value_of(from[i]));
  });
  return out;
}

template <typename T>
std::vector<T> operand_of(const Operation& dot, const TileData& x) {
  std::vector<T> out = converted<T>(x);
  if constexpr (std::is_same_v<T, float>) {
    if (dot.tf32) std::ranges::transform(out, out.begin(), round_to_tf32);
  }
  return out;
}

// Rows of group g are multiplied with the columns of group g, which repeat as often as they must,
// or are one for each block of k; or with the rows of group g.
template <typename T, typename Add>
void multiply(const Operation& op, const TileData& a, const TileData& b, TileData& out, Add add) {
  const int groups = std::max(1, static_cast<int>(op.integer));
  const int m = out.type().shape[0], n = out.type().shape[1], depth = a.type().shape[1];
  const bool has_own_rows = b.type().shape[0] != depth;
  const int all = b.type().shape[1], height = m / groups;
  const int columns = has_own_rows ? n : all / groups;
  const std::vector<T> left = operand_of<T>(op, a), right = operand_of<T>(op, b);
  T* sums = out.data<T>();
  for (int row = 0; row < m; ++row) {
    for (int k = 0; k < depth; ++k) {
      const int group = row / height;
      const T* from = has_own_rows ? &right[(int64_t{group} * depth + k) * all]
                                   : &right[int64_t{k} * all + group * columns];
      if (!op.integers.empty()) {
        const int64_t column = op.integers[1] + k / op.integers[0];
        add(sums + int64_t{row} * n + column, left[int64_t{row} * depth + k], from, 1);
        continue;
      }
      for (int first = 0; first < n; first += columns) {
        add(sums + int64_t{row} * n + first, left[int64_t{row} * depth + k], from, columns);
      }
    }
  }
}

}  // namespace

void interpret_dot(const Operation& op, TileOperands in, TileData& out) {
  std::memcpy(out.data<std::byte>(), in[0]->data<std::byte>(), out.bytes());
  visit_element(out.dtype(), [&]<typename T>() {
    if constexpr (std::is_same_v<T, float>) {
      static const AddRow add = best_add_row();
      multiply<float>(op, *in[1], *in[2], out, add);
    } else if constexpr (std::is_same_v<T, double> || is_integer_element<T>) {
      multiply<T>(op, *in[1], *in[2], out,
                  [](T* sums, T factor, const T* row, int n) { add_row(sums, factor, row, n); });
    }
  });
}

void interpret_dot_i8(TileOperands in, TileData& out) {
  const int m = out.type().shape[0], n = out.type().shape[1], depth = in[1]->type().shape[1];
  const std::vector<int32_t> a = converted<int32_t>(*in[1]), b = converted<int32_t>(*in[2]);
  const int32_t* sums = in[0]->data<int32_t>();
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      auto sum = static_cast<uint32_t>(sums[int64_t{row} * n + column]);
      for (int k = 0; k < depth; ++k) {
        sum += static_cast<uint32_t>(a[int64_t{row} * depth + k] * b[int64_t{column} * depth + k]);
      }
      out.data<int32_t>()[int64_t{row} * n + column] = static_cast<int32_t>(sum);
    }
  }
}

}  // namespace tenon::codegen
