// What check_types() looks at an operation with.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/checked.h"
#include "codegen/tile/op_info.h"
#include "codegen/tile/verify.h"

// Types go into messages, which are written only where something is wrong.
template <>
struct fmt::formatter<tenon::codegen::Type> : fmt::formatter<std::string_view> {
  auto format(const tenon::codegen::Type& type, format_context& context) const {
    return fmt::formatter<std::string_view>::format(tenon::codegen::text(type), context);
  }
};

namespace tenon::codegen {

inline bool is_computed(DType dtype) {
  if (dtype == DType::kBool) return true;
  if (is_small_float(dtype) || is_packed(dtype)) return false;
  return is_integer(dtype) || is_floating(dtype);
}

inline bool is_numeric(DType dtype) { return is_computed(dtype) && dtype != DType::kBool; }
inline bool is_float(DType dtype) { return is_computed(dtype) && is_floating(dtype); }
inline bool is_bitwise(DType dtype) { return dtype == DType::kBool || is_integer(dtype); }
inline bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// Checks one operation; the first broken rule ends it. Attributes come from texts and may be any
// number: what is computed from one is computed with base/checked.h.
class TypeChecker {
 public:
  TypeChecker(const Operation& operation, const Types& types) : op_(operation), types_(types) {}

  Support run() {
    try {
      check();
    } catch (const Broken& broken) {
      return Support::no(fmt::format("{}: {}", word(), broken.why));
    } catch (const UserError& overflow) {
      return Support::no(fmt::format("{}: {}", word(), overflow.what()));
    }
    return Support::yes();
  }

 private:
  struct Broken {
    std::string why;
  };

  std::string_view word() const { return op_.fn == Fn::kNone ? name(op_.op) : name(op_.fn); }

  template <typename... Args>
  static void require(bool holds, fmt::format_string<Args...> why, Args&&... args) {
    if (!holds) throw Broken{fmt::format(why, std::forward<Args>(args)...)};
  }

  const Type& operand(size_t i) const {
    require(i < op_.operands.size(), "operand {} is missing", i);
    ValueId id = op_.operands[i];
    require(id >= 0 && static_cast<size_t>(id) < types_.size(), "operand {} is no value", i);
    return types_[id];
  }
  const Type& result(size_t i = 0) const {
    require(i < op_.results.size(), "result {} is missing", i);
    return types_[op_.results[i]];
  }
  bool absent(size_t i) const { return i < op_.operands.size() && op_.operands[i] == kNone; }

  void is_index(size_t i) const {
    require(operand(i).kind == Type::Kind::kIndex, "operand {} must be an index, is {}", i,
            operand(i));
  }
  const Type& tile(size_t i) const {
    require(operand(i).kind == Type::Kind::kTile, "operand {} must be a tile, is {}", i,
            operand(i));
    return operand(i);
  }
  const Type& buffer(size_t i) const {
    require(operand(i).kind == Type::Kind::kBuffer, "operand {} must be a buffer, is {}", i,
            operand(i));
    return operand(i);
  }
  void same(const Type& expected, const Type& got, std::string_view what) const {
    require(expected == got, "{} must be {}, is {}", what, expected, got);
  }
  void well_formed(const Type& type) const {
    if (type.kind == Type::Kind::kIndex) return;
    require(is_computed(type.dtype), "{} cannot be computed with; use bytes and dequantize_*",
            tenon::name(type.dtype));
    if (type.kind == Type::Kind::kBuffer) return;
    require(type.shape.size() <= 2, "{} has rank above 2", type);
    for (int size : type.shape) require(size > 0, "{} has an empty dimension", type);
    require(type.elements() <= kMaxTileElements, "{} has more than {} elements", type,
            kMaxTileElements);
  }

  void check();
  void check_counts();
  void check_control();
  void check_index_op();
  void check_constant();
  void check_elementwise();
  void check_shape_op();
  void check_broadcast();
  void check_slice();
  void check_concat();
  void check_reduce();
  void check_table_or_dot();
  void check_dot();
  void check_dot_i8();
  void check_tile_dot();
  void check_memory();
  void check_access(size_t first, const Type& shape);
  void check_for();
  void check_ring_op();
  void check_pipeline();
  void check_permute();
  void check_bitcast();

  const Operation& op_;
  const Types& types_;
};

}  // namespace tenon::codegen
