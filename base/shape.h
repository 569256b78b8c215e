// Dimensions known as numbers or as expressions over named symbols.
//
// A Dim is kept in a normal form (a sum of products of atoms), so that two dims that are equal as
// polynomials compare equal: `s*12*32` == `384*s`, `(b*s*384)/384` == `b*s`. Atoms are symbols and
// what does not divide or compare statically: floordiv, ceildiv, mod, min, max, broadcast. A
// product of sums that would have too many terms stays one, product(…), and is equal to itself
// only. Symbols stand for sizes: they are never negative, and min(s,0) folds to 0.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tenon {

class Dim {
 public:
  Dim(int64_t value = 0);  // NOLINT: a number is a dim
  static Dim symbol(std::string name);

  bool is_constant() const;
  int64_t value() const;  // throws InternalError unless is_constant()
  bool is(int64_t value) const { return is_constant() && this->value() == value; }

  // Values of symbols by name; throws UserError on overflow and InternalError on an unknown name.
  using Lookup = std::function<int64_t(std::string_view symbol)>;
  int64_t evaluate(const Lookup& lookup) const;
  void collect_symbols(std::vector<std::string>& into) const;
  using Replacement = std::function<std::optional<Dim>(std::string_view)>;
  Dim substitute(const Replacement& of_symbol) const;
  // The same of functions by their text, `floordiv(seq,16)`; outer ones are asked for first.
  Dim substitute_functions(const Replacement& of_function) const;

  // `384`, `batch`, `2*batch*seq+1`, `floordiv(seq,16)`; a symbol that is no plain word is quoted:
  // `'past + 1'`. parse(text()) == *this.
  std::string text() const;
  static Dim parse(std::string_view text);

  // Each throws UserError on overflow and where the result would be longer than any size is.
  friend Dim operator+(const Dim&, const Dim&);
  friend Dim operator-(const Dim&, const Dim&);
  friend Dim operator*(const Dim&, const Dim&);
  friend Dim floor_div(const Dim&, const Dim&);
  friend Dim ceil_div(const Dim&, const Dim&);
  friend Dim mod(const Dim&, const Dim&);
  friend Dim min(const Dim&, const Dim&);
  friend Dim max(const Dim&, const Dim&);
  // What ONNX's broadcasting makes of two dims: equal, or the one that is not 1.
  friend Dim broadcast(const Dim&, const Dim&);
  friend bool operator==(const Dim&, const Dim&);

  // A row stride times this: 0 where `dim` turns out to be 1 at run time, `stride` otherwise.
  friend Dim stride_unless_one(const Dim& dim, const Dim& stride);

 private:
  struct Expression;
  explicit Dim(std::shared_ptr<const Expression> expression);
  friend struct DimAlgebra;
  int64_t constant_ = 0;
  std::shared_ptr<const Expression> expression_;  // null for constants
};

Dim operator+(const Dim&, const Dim&);
Dim operator-(const Dim&, const Dim&);
Dim operator*(const Dim&, const Dim&);
Dim floor_div(const Dim&, const Dim&);
Dim ceil_div(const Dim&, const Dim&);
Dim mod(const Dim&, const Dim&);
Dim min(const Dim&, const Dim&);
Dim max(const Dim&, const Dim&);
Dim broadcast(const Dim&, const Dim&);
Dim stride_unless_one(const Dim& dim, const Dim& stride);
bool operator==(const Dim&, const Dim&);

using Shape = std::vector<Dim>;

Dim element_count(const Shape& shape);
bool is_static(const Shape& shape);
std::vector<int64_t> static_dims(const Shape& shape);  // throws InternalError unless is_static
Shape make_shape(const std::vector<int64_t>& dims);
// Row-major strides in elements.
Shape contiguous_strides(const Shape& shape);
// nullopt when two fixed dims neither match nor are 1.
std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b);
std::string text(const Shape& shape);      // "[batch,128,384]"
Shape parse_shape(std::string_view text);  // the inverse; throws UserError with the column

}  // namespace tenon
