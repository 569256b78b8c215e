#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "codegen/tile/type_checker.h"

namespace tenon::codegen {

namespace {

bool between(Fn fn, Fn first, Fn last) { return fn >= first && fn <= last; }

// The element types that a function takes.
bool takes(Fn fn, DType dtype) {
  switch (fn) {
    case Fn::kNot:
    case Fn::kAnd:
    case Fn::kOr:
    case Fn::kXor:
      return is_bitwise(dtype);
    case Fn::kShiftLeft:
    case Fn::kShiftRight:
      return is_integer(dtype);
    case Fn::kNeg:
    case Fn::kAbs:
    case Fn::kSign:
    case Fn::kAdd:
    case Fn::kSub:
    case Fn::kMul:
    case Fn::kDiv:
    case Fn::kRem:
    case Fn::kMod:
    case Fn::kMin:
    case Fn::kMax:
    case Fn::kPow:
      return is_numeric(dtype);
    case Fn::kEqual:
    case Fn::kNotEqual:
      return true;
    case Fn::kLess:
    case Fn::kLessEqual:
    case Fn::kGreater:
    case Fn::kGreaterEqual:
      return is_numeric(dtype);
    default:
      break;
  }
  if (between(fn, Fn::kDequantizeF8E4M3FN, Fn::kDequantizeF4E2M1)) return dtype == DType::kU8;
  if (between(fn, Fn::kQuantizeF8E4M3FN, Fn::kQuantizeF4E2M1)) return dtype == DType::kF32;
  return is_float(dtype);  // the real functions and fma
}

DType unary_result(Fn fn, DType dtype) {
  if (between(fn, Fn::kDequantizeF8E4M3FN, Fn::kDequantizeF4E2M1)) return DType::kF32;
  if (between(fn, Fn::kQuantizeF8E4M3FN, Fn::kQuantizeF4E2M1)) return DType::kU8;
  if (fn == Fn::kIsNan || fn == Fn::kIsInf) return DType::kBool;
  return dtype;
}

}  // namespace

void TypeChecker::check() {
  for (ValueId id : op_.results) {
    require(id >= 0 && static_cast<size_t>(id) < types_.size(), "a result has no type");
    well_formed(types_[id]);
  }
  check_counts();
  switch (info(op_.op).group) {
    case OpGroup::kIndex:
      return check_index_op();
    case OpGroup::kMake:
      return check_constant();
    case OpGroup::kElementwise:
      return check_elementwise();
    case OpGroup::kShape:
      return check_shape_op();
    case OpGroup::kProduct:
      return check_table_or_dot();
    case OpGroup::kMemory:
      return op_.op == Op::kTileDot ? check_tile_dot() : check_memory();
    case OpGroup::kRing:
      return check_ring_op();
    case OpGroup::kControl:
      return check_control();
  }
}

void TypeChecker::check_counts() {
  const OpInfo& known = info(op_.op);
  auto expect = [&](std::string_view what, int expected, size_t got) {
    require(expected == OpInfo::kAny || static_cast<size_t>(expected) == got,
            "expected {} {}, got {}", expected, what, got);
  };
  if (!known.has_more) expect("operands", known.operands, op_.operands.size());
  expect("results", known.results, op_.results.size());
  expect("regions", known.regions, op_.regions.size());
}

void TypeChecker::check_control() {
  switch (op_.op) {
    case Op::kPipeline:
      return check_pipeline();
    case Op::kFor:
      return check_for();
    case Op::kIf:
      return same(Type::tile(DType::kBool), operand(0), "the condition");
    default:  // kYield
      for (size_t i = 0; i < op_.operands.size(); ++i) operand(i);
  }
}

void TypeChecker::check_index_op() {
  switch (op_.op) {
    case Op::kTask:
    case Op::kIndexConstant:
      break;
    case Op::kIndexLess:
    case Op::kIndexEqual:
      is_index(0), is_index(1);
      return same(Type::tile(DType::kBool), result(), "the result");
    case Op::kIndexSelect:
      same(Type::tile(DType::kBool), operand(0), "the condition");
      is_index(1), is_index(2);
      break;
    case Op::kIndexFromTile:
      require(tile(0).shape.empty() && is_integer(tile(0).dtype),
              "operand must be an integer tile of rank 0, is {}", operand(0));
      break;
    default:
      is_index(0), is_index(1);
  }
  same(Type::index(), result(), "the result");
}

void TypeChecker::check_constant() {
  require(result().kind == Type::Kind::kTile, "the result must be a tile, is {}", result());
  switch (op_.op) {
    case Op::kConstant:
      if (op_.integers.empty()) return;
      require(
          result().shape.size() == 1 && result().shape[0] == static_cast<int>(op_.integers.size()),
          "a table of {} entries cannot be {}", op_.integers.size(), result());
      return;
    case Op::kSplat:
      require(tile(0).shape.empty(), "operand must have rank 0, is {}", operand(0));
      return same(Type::tile(operand(0).dtype, result().shape), result(), "the result");
    case Op::kFromIndex:
      is_index(0);
      require(result().shape.empty() && is_numeric(result().dtype),
              "the result must be a number of rank 0, is {}", result());
      return;
    default:  // kIota
      require(is_numeric(result().dtype), "cannot count in {}", result());
      require(op_.axis >= 0 && op_.axis < static_cast<int>(result().shape.size()),
              "axis {} is outside {}", op_.axis, result());
  }
}

void TypeChecker::check_elementwise() {
  const Type& first = tile(0);
  if (op_.fn != Fn::kNone) {
    require(takes(op_.fn, first.dtype), "does not take {}", first);
  }
  switch (op_.op) {
    case Op::kUnary:
      require(between(op_.fn, Fn::kNeg, Fn::kQuantizeF4E2M1), "is not unary");
      return same(Type::tile(unary_result(op_.fn, first.dtype), first.shape), result(),
                  "the result");
    case Op::kBinary:
      require(between(op_.fn, Fn::kAdd, Fn::kShiftRight), "is not binary");
      same(first, operand(1), "operand 1");
      return same(first, result(), "the result");
    case Op::kTernary:
      require(op_.fn == Fn::kFma, "is not ternary");
      same(first, operand(1), "operand 1");
      same(first, operand(2), "operand 2");
      return same(first, result(), "the result");
    case Op::kCompare:
      require(between(op_.fn, Fn::kEqual, Fn::kGreaterEqual), "is not a comparison");
      same(first, operand(1), "operand 1");
      return same(Type::tile(DType::kBool, first.shape), result(), "the result");
    case Op::kSelect:
      same(Type::tile(DType::kBool, result().shape), first, "the condition");
      same(tile(1), operand(2), "operand 2");
      return same(operand(1), result(), "the result");
    case Op::kCast:
      return same(Type::tile(result().dtype, first.shape), result(), "the result");
    default:  // kBitcast
      check_bitcast();
  }
}

void TypeChecker::check_bitcast() {
  const Type &from = tile(0), &to = result();
  require(is_numeric(from.dtype) && is_numeric(to.dtype), "{} has no bits to look at", from);
  int parts = bit_width(from.dtype) / bit_width(to.dtype);
  require(parts * bit_width(to.dtype) == bit_width(from.dtype), "{} and {} differ in width", from,
          to);
  std::vector<int> shape = from.shape;
  if (parts > 1) {
    require(!shape.empty(), "a scalar cannot fall apart");
    shape.back() *= parts;
  }
  same(Type::tile(to.dtype, shape), to, "the result");
}

void TypeChecker::check_shape_op() {
  if (op_.op == Op::kConcat) return check_concat();
  const Type& from = tile(0);
  require(result().kind == Type::Kind::kTile && result().dtype == from.dtype, "{} cannot become {}",
          from, result());
  switch (op_.op) {
    case Op::kBroadcast:
      return check_broadcast();
    case Op::kReshape:
      return require(from.elements() == result().elements(), "{} and {} differ in size", from,
                     result());
    case Op::kTranspose:
      require(from.shape.size() == 2, "needs rank 2, got {}", from);
      return same(Type::tile(from.dtype, {from.shape[1], from.shape[0]}), result(), "the result");
    case Op::kSlice:
      return check_slice();
    case Op::kPermute:
      return check_permute();
    default:
      return check_reduce();
  }
}

void TypeChecker::check_broadcast() {
  const Type &from = operand(0), &to = result();
  require(from.shape.size() <= to.shape.size(), "{} has a lower rank than {}", to, from);
  size_t missing = to.shape.size() - from.shape.size();
  for (size_t d = 0; d < from.shape.size(); ++d) {
    require(from.shape[d] == 1 || from.shape[d] == to.shape[missing + d],
            "{} does not broadcast to {}", from, to);
  }
}

void TypeChecker::check_slice() {
  const Type &from = operand(0), &to = result();
  require(to.shape.size() == from.shape.size() && op_.integers.size() == from.shape.size(),
          "needs an offset and a size for each dimension of {}", from);
  for (size_t d = 0; d < from.shape.size(); ++d) {
    require(op_.integers[d] >= 0 && checked_add(op_.integers[d], to.shape[d]) <= from.shape[d],
            "offset {} and size {} leave {}", op_.integers[d], to.shape[d], from);
  }
}

void TypeChecker::check_permute() {
  const Type &from = operand(0), &to = result();
  require(from.elements() == to.elements(), "{} and {} differ in size", from, to);
  std::vector<int64_t> bits = op_.integers;
  std::ranges::sort(bits);
  constexpr size_t kMostBits = std::bit_width(static_cast<uint64_t>(kMaxTileElements));
  bool all = bits.size() < kMostBits && from.elements() == int64_t{1} << bits.size();
  for (size_t i = 0; i < bits.size(); ++i) all = all && bits[i] == static_cast<int64_t>(i);
  require(all, "bits must name each bit of an element number of {} once", from);
}

void TypeChecker::check_concat() {
  require(!op_.operands.empty(), "needs parts");
  Type expected = tile(0);
  require(op_.axis >= 0 && op_.axis < static_cast<int>(expected.shape.size()),
          "axis {} is outside {}", op_.axis, expected);
  int64_t along = 0;
  for (size_t i = 0; i < op_.operands.size(); ++i) {
    Type part = tile(i);
    along += part.shape.size() == expected.shape.size() ? part.shape[op_.axis] : 0;
    if (part.shape.size() == expected.shape.size()) {
      part.shape[op_.axis] = expected.shape[op_.axis];
    }
    same(expected, part, fmt::format("part {} (but for axis {})", i, op_.axis));
  }
  require(along <= kMaxTileElements, "{} elements along axis {} are more than {}", along, op_.axis,
          kMaxTileElements);
  expected.shape[op_.axis] = static_cast<int>(along);
  same(expected, result(), "the result");
}

void TypeChecker::check_reduce() {
  Type expected = operand(0);
  constexpr Fn kReducers[] = {Fn::kAdd, Fn::kMul, Fn::kMin, Fn::kMax, Fn::kAnd, Fn::kOr};
  require(std::ranges::count(kReducers, op_.fn) == 1, "is not a reduction");
  require(takes(op_.fn, expected.dtype), "does not take {}", expected);
  require(op_.axis >= 0 && op_.axis < static_cast<int>(expected.shape.size()),
          "axis {} is outside {}", op_.axis, expected);
  expected.shape.erase(expected.shape.begin() + op_.axis);
  same(expected, result(), "the result");
}

void TypeChecker::check_table_or_dot() {
  if (op_.op == Op::kDot) return check_dot();
  if (op_.op == Op::kDotI8) return check_dot_i8();
  const Type& table = tile(0);
  require(table.shape == std::vector{16} || table.shape == std::vector{256},
          "the table must have 16 or 256 entries, is {}", table);
  require(is_integer(tile(1).dtype), "codes must be integers, are {}", operand(1));
  same(Type::tile(table.dtype, operand(1).shape), result(), "the result");
}

void TypeChecker::check_dot() {
  const Type &acc = tile(0), &a = tile(1), &b = tile(2);
  const int64_t groups = op_.integer;
  require(groups >= 0 && acc.shape.size() == 2 && a.shape.size() == 2 && b.shape.size() == 2 &&
              a.shape[0] == acc.shape[0] &&
              (a.shape[1] == b.shape[0] || checked_mul(groups, a.shape[1]) == b.shape[0]),
          "shapes {} + {} * {} do not fit [m,n] + [m,k] * [k,n]", acc, a, b);
  const bool has_own_columns = groups > 0 && a.shape[1] == b.shape[0];
  const int64_t columns = has_own_columns ? b.shape[1] / groups : acc.shape[1];
  require((groups == 0 || acc.shape[0] % groups == 0) && columns > 0 &&
              (has_own_columns ? b.shape[1] % groups == 0 && acc.shape[1] % columns == 0
                               : b.shape[1] == acc.shape[1]),
          "shapes {} + {} * {} do not fit {} groups", acc, a, b, groups);
  if (!op_.integers.empty()) {
    require(op_.integers.size() == 3 && has_own_columns && columns == 1 && op_.integers[0] > 0 &&
                a.shape[1] % op_.integers[0] == 0 && op_.integers[1] >= 0 &&
                checked_add(op_.integers[1], a.shape[1] / op_.integers[0]) <= acc.shape[1],
            "blocks need one column of b for each group, and {} columns for their sums", acc);
  }
  require(is_numeric(acc.dtype) && !is_half(acc.dtype) && bit_width(acc.dtype) >= 32,
          "cannot accumulate in {}", acc);
  for (const Type* side : {&a, &b}) {
    require(side->dtype == acc.dtype || (acc.dtype == DType::kF32 && is_half(side->dtype)),
            "{} cannot be multiplied into {}", *side, acc);
    require(!op_.tf32 || side->dtype == DType::kF32, "tf32 products are of f32 tiles, not of {}",
            *side);
  }
  require(!op_.tf32 || groups == 0, "tf32 products have no groups");
  same(acc, result(), "the result");
}

void TypeChecker::check_dot_i8() {
  const Type &acc = tile(0), &a = tile(1), &b = tile(2);
  require(acc.shape.size() == 2 && a.shape.size() == 2 && b.shape.size() == 2 &&
              a.shape[0] == acc.shape[0] && b.shape[0] == acc.shape[1] &&
              a.shape[1] == b.shape[1] && a.shape[1] % 4 == 0,
          "shapes {} + {} * {} do not fit [m,n] + [m,k] * [n,k] with k a multiple of 4", acc, a, b);
  const auto is_byte = [](const Type& t) { return t.dtype == DType::kU8 || t.dtype == DType::kI8; };
  const bool a_signed = a.dtype == DType::kI8, b_signed = b.dtype == DType::kI8;
  require(acc.dtype == DType::kI32 && is_byte(a) && is_byte(b) && (a_signed || b_signed),
          "element types must be i32 + i8 * i8, where one i8 may be u8");
  same(acc, result(), "the result");
}

// Without fmt: every printed operation has one.
std::string text(const Type& type) {
  if (type.kind == Type::Kind::kIndex) return "index";
  std::string element(tenon::name(type.dtype));
  if (type.kind == Type::Kind::kBuffer) return "buffer<" + element + ">";
  element += '[';
  for (size_t d = 0; d < type.shape.size(); ++d) {
    if (d > 0) element += ',';
    element += std::to_string(type.shape[d]);
  }
  element += ']';
  return type.kind == Type::Kind::kRing ? "ring<" + element + ">" : element;
}

Support check_types(const Operation& operation, const Types& types) {
  return TypeChecker(operation, types).run();
}

}  // namespace tenon::codegen
