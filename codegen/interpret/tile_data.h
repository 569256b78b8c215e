// The elements of a tile while it is interpreted, in row-major order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "codegen/tile/ir.h"

namespace tenon::codegen {

class TileData {
 public:
  const Type& type() const { return *type_; }
  DType dtype() const { return type_->dtype; }
  int64_t elements() const { return elements_; }
  size_t bytes() const { return bytes_; }

  // Forgets the elements; storage is kept where nobody else holds it. `type` must outlive this.
  void reset(const Type& type) {
    if (type_ == &type && storage_.use_count() == 1) return;
    type_ = &type;
    elements_ = type.elements();
    bytes_ = storage_bytes(type.dtype, elements_);
    storage_ = std::make_shared<uint64_t[]>((bytes_ + 7) / 8);
  }

  template <typename T>
  T* data() {
    return reinterpret_cast<T*>(storage_.get());
  }
  template <typename T>
  const T* data() const {
    return reinterpret_cast<const T*>(storage_.get());
  }
  template <typename T>
  std::span<const T> span() const {
    return {data<T>(), static_cast<size_t>(elements_)};
  }

 private:
  const Type* type_ = nullptr;
  int64_t elements_ = 0;
  size_t bytes_ = 0;
  std::shared_ptr<uint64_t[]> storage_;  // shared by the values that a tile is carried through
};

using TileOperands = std::span<const TileData* const>;

// Each fills `out`, which has the type of the operation's result.
void interpret_elementwise(const Operation& op, TileOperands in, TileData& out);  // elementwise.cc
void interpret_cast(const TileData& x, TileData& out);                            // casts.cc
void interpret_shape(const Operation& op, TileOperands in, TileData& out);        // shapes.cc
void interpret_constant(const Operation& op, TileData& out);                      // shapes.cc
void interpret_lookup(TileOperands in, TileData& out);                            // shapes.cc
void interpret_dot(const Operation& op, TileOperands in, TileData& out);          // dots.cc
void interpret_dot_i8(TileOperands in, TileData& out);                            // dots.cc

// One element from a number, as kConstant and the fill of loads have it.
void fill_elements(TileData& out, double number, int64_t integer);  // shapes.cc

}  // namespace tenon::codegen
