#include "codegen/tile/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "codegen/tile/verify.h"

namespace tenon::codegen {

namespace {

// What an index operation makes of two constants.
std::optional<int64_t> fold(Op op, int64_t a, int64_t b) {
  switch (op) {
    case Op::kIndexAdd:
      return a + b;
    case Op::kIndexSub:
      return a - b;
    case Op::kIndexMul:
      return a * b;
    case Op::kIndexDiv:
      return b == 0 ? std::nullopt : std::optional(a / b);
    case Op::kIndexRem:
      return b == 0 ? std::nullopt : std::optional(a % b);
    case Op::kIndexMin:
      return std::min(a, b);
    case Op::kIndexMax:
      return std::max(a, b);
    default:
      return std::nullopt;
  }
}

}  // namespace

Builder::Builder(std::string kernel_name) {
  kernel_.name = std::move(kernel_name);
  open_.emplace_back();
}

ValueId Builder::define(Type type) {
  kernel_.types.push_back(std::move(type));
  return static_cast<ValueId>(kernel_.types.size() - 1);
}

const Type& Builder::type(ValueId value) const {
  if (value < 0 || static_cast<size_t>(value) >= kernel_.types.size()) {
    throw InternalError(fmt::format("kernel @{}: value {} does not exist", kernel_.name, value));
  }
  return kernel_.types[value];
}

void Builder::check_operands(const Operation& operation) const {
  for (ValueId id : operation.operands) {
    if (id != kNone) type(id);
  }
}

std::vector<ValueId> Builder::append(Operation operation, std::vector<Type> results) {
  check_operands(operation);
  for (Type& result : results) operation.results.push_back(define(std::move(result)));
  if (Support support = check_types(operation, kernel_.types); !support) {
    throw InternalError(fmt::format("kernel @{}: {}", kernel_.name, support.reason));
  }
  std::vector<ValueId> ids = operation.results;
  open_.back().operations.push_back(std::move(operation));
  return ids;
}

ValueId Builder::emit(Operation operation, Type result) {
  return append(std::move(operation), {std::move(result)})[0];
}

ValueId Builder::buffer(std::string name, DType dtype, bool constant) {
  kernel_.parameters.push_back({std::move(name), Type::buffer(dtype), constant});
  if (kernel_.parameters.size() != kernel_.types.size() + 1) {
    throw InternalError(fmt::format("kernel @{}: parameters come first", kernel_.name));
  }
  return define(Type::buffer(dtype));
}

ValueId Builder::index_parameter(std::string name) {
  kernel_.parameters.push_back({std::move(name), Type::index()});
  if (kernel_.parameters.size() != kernel_.types.size() + 1) {
    throw InternalError(fmt::format("kernel @{}: parameters come first", kernel_.name));
  }
  return define(Type::index());
}

// ---- indices

ValueId Builder::task() {
  if (task_ == kNone) {
    task_ = define(Type::index());
    prologue_.push_back({.op = Op::kTask, .results = {task_}});
  }
  return task_;
}

ValueId Builder::index(int64_t value) {
  auto [entry, is_new] = index_constants_.try_emplace(value, kNone);
  if (is_new) {
    entry->second = define(Type::index());
    index_values_[entry->second] = value;
    prologue_.push_back({.op = Op::kIndexConstant, .results = {entry->second}, .integer = value});
  }
  return entry->second;
}

std::optional<int64_t> Builder::constant_index(ValueId value) const {
  auto found = index_values_.find(value);
  return found == index_values_.end() ? std::nullopt : std::optional(found->second);
}

ValueId Builder::index_binary(Op op, ValueId a, ValueId b) {
  std::optional<int64_t> left = constant_index(a), right = constant_index(b);
  if (left && right) {
    if (std::optional<int64_t> folded = fold(op, *left, *right)) return index(*folded);
  }
  bool left_zero = left == 0, right_zero = right == 0, left_one = left == 1, right_one = right == 1;
  switch (op) {
    case Op::kIndexAdd:
      if (left_zero) return b;
      if (right_zero) return a;
      break;
    case Op::kIndexSub:
      if (right_zero) return a;
      break;
    case Op::kIndexMul:
      if (left_zero || right_one) return a;
      if (right_zero || left_one) return b;
      break;
    case Op::kIndexDiv:
      if (right_one || left_zero) return a;
      break;
    case Op::kIndexRem:
      if (right_one) return index(0);
      break;
    case Op::kIndexMin:
    case Op::kIndexMax:
      if (a == b) return a;
      break;
    default:
      break;
  }
  return emit({.op = op, .operands = {a, b}}, Type::index());
}

#define TENON_TWO_WAYS(method, index_op, tile_fn)                            \
  ValueId Builder::method(ValueId a, ValueId b) {                            \
    return type(a).kind == Type::Kind::kIndex ? index_binary(index_op, a, b) \
                                              : binary(tile_fn, a, b);       \
  }
TENON_TWO_WAYS(add, Op::kIndexAdd, Fn::kAdd)
TENON_TWO_WAYS(sub, Op::kIndexSub, Fn::kSub)
TENON_TWO_WAYS(mul, Op::kIndexMul, Fn::kMul)
TENON_TWO_WAYS(div, Op::kIndexDiv, Fn::kDiv)
TENON_TWO_WAYS(rem, Op::kIndexRem, Fn::kRem)
TENON_TWO_WAYS(min, Op::kIndexMin, Fn::kMin)
TENON_TWO_WAYS(max, Op::kIndexMax, Fn::kMax)
#undef TENON_TWO_WAYS

ValueId Builder::less(ValueId a, ValueId b) {
  if (type(a).kind != Type::Kind::kIndex) return compare(Fn::kLess, a, b);
  return emit({.op = Op::kIndexLess, .operands = {a, b}}, Type::tile(DType::kBool));
}

ValueId Builder::equal(ValueId a, ValueId b) {
  if (type(a).kind != Type::Kind::kIndex) return compare(Fn::kEqual, a, b);
  return emit({.op = Op::kIndexEqual, .operands = {a, b}}, Type::tile(DType::kBool));
}

ValueId Builder::select(ValueId condition, ValueId a, ValueId b) {
  if (type(a).kind == Type::Kind::kIndex) {
    if (a == b) return a;
    return emit({.op = Op::kIndexSelect, .operands = {condition, a, b}}, Type::index());
  }
  DType dtype = type(a).dtype;
  return elementwise(Op::kSelect, Fn::kNone, {condition, a, b}, dtype);
}

ValueId Builder::index_from(ValueId scalar_tile) {
  return emit({.op = Op::kIndexFromTile, .operands = {scalar_tile}}, Type::index());
}

// ---- making tiles

ValueId Builder::constant(DType dtype, double value, std::vector<int> shape) {
  if (!is_floating(dtype)) {
    return integer_constant(dtype, static_cast<int64_t>(value), std::move(shape));
  }
  return emit({.op = Op::kConstant, .number = value}, Type::tile(dtype, std::move(shape)));
}

ValueId Builder::integer_constant(DType dtype, int64_t value, std::vector<int> shape) {
  if (is_floating(dtype)) return constant(dtype, static_cast<double>(value), std::move(shape));
  return emit({.op = Op::kConstant, .integer = value}, Type::tile(dtype, std::move(shape)));
}

ValueId Builder::table(DType dtype, const std::vector<double>& values) {
  Operation operation{.op = Op::kConstant};
  for (double value : values) {
    operation.integers.push_back(is_floating(dtype) ? std::bit_cast<int64_t>(value)
                                                    : static_cast<int64_t>(value));
  }
  return emit(std::move(operation), Type::tile(dtype, {static_cast<int>(values.size())}));
}

ValueId Builder::splat(ValueId scalar, std::vector<int> shape) {
  if (shape.empty()) return scalar;
  DType dtype = type(scalar).dtype;
  return emit({.op = Op::kSplat, .operands = {scalar}}, Type::tile(dtype, std::move(shape)));
}

ValueId Builder::from_index(ValueId index, DType dtype) {
  return emit({.op = Op::kFromIndex, .operands = {index}}, Type::tile(dtype));
}

ValueId Builder::iota(DType dtype, std::vector<int> shape, int axis) {
  return emit({.op = Op::kIota, .axis = axis}, Type::tile(dtype, std::move(shape)));
}

// ---- elementwise

ValueId Builder::elementwise(Op op, Fn fn, std::vector<ValueId> operands, DType result) {
  std::vector<int> shape;
  for (ValueId operand : operands) {
    if (type(operand).kind == Type::Kind::kTile && !type(operand).shape.empty()) {
      shape = type(operand).shape;
      break;
    }
  }
  for (ValueId& operand : operands) {
    const Type& t = type(operand);
    if (t.kind == Type::Kind::kTile && t.shape.empty()) operand = splat(operand, shape);
  }
  return emit({.op = op, .fn = fn, .operands = std::move(operands)}, Type::tile(result, shape));
}

ValueId Builder::unary(Fn fn, ValueId x) {
  DType result = type(x).dtype;
  if (fn == Fn::kIsNan || fn == Fn::kIsInf) result = DType::kBool;
  if (fn >= Fn::kDequantizeF8E4M3FN && fn <= Fn::kDequantizeF4E2M1) result = DType::kF32;
  if (fn >= Fn::kQuantizeF8E4M3FN && fn <= Fn::kQuantizeF4E2M1) return quantize(fn, x, true);
  return elementwise(Op::kUnary, fn, {x}, result);
}

ValueId Builder::quantize(Fn fn, ValueId x, bool saturate) {
  return quantize(fn, x, EncodeRule{.saturate = saturate});
}

ValueId Builder::quantize(Fn fn, ValueId x, EncodeRule rule) {
  return emit({.op = Op::kUnary, .fn = fn, .operands = {x}, .integer = encode_attribute(rule)},
              Type::tile(DType::kU8, type(x).shape));
}

ValueId Builder::binary(Fn fn, ValueId a, ValueId b) {
  return elementwise(Op::kBinary, fn, {a, b}, type(a).dtype);
}

ValueId Builder::fma(ValueId a, ValueId b, ValueId c) {
  return elementwise(Op::kTernary, Fn::kFma, {a, b, c}, type(a).dtype);
}

ValueId Builder::compare(Fn fn, ValueId a, ValueId b) {
  return elementwise(Op::kCompare, fn, {a, b}, DType::kBool);
}

ValueId Builder::cast(ValueId x, DType dtype) {
  if (type(x).dtype == dtype) return x;
  return emit({.op = Op::kCast, .operands = {x}}, Type::tile(dtype, type(x).shape));
}

ValueId Builder::bitcast(ValueId x, DType dtype) {
  if (type(x).dtype == dtype) return x;
  std::vector<int> shape = type(x).shape;
  int parts = bit_width(type(x).dtype) / bit_width(dtype);
  if (parts > 1 && !shape.empty()) shape.back() *= parts;
  return emit({.op = Op::kBitcast, .operands = {x}}, Type::tile(dtype, std::move(shape)));
}

// ---- shapes

ValueId Builder::broadcast(ValueId x, std::vector<int> shape) {
  if (type(x).shape == shape) return x;
  DType dtype = type(x).dtype;
  if (type(x).shape.empty()) return splat(x, std::move(shape));
  return emit({.op = Op::kBroadcast, .operands = {x}}, Type::tile(dtype, std::move(shape)));
}

ValueId Builder::reshape(ValueId x, std::vector<int> shape) {
  if (type(x).shape == shape) return x;
  DType dtype = type(x).dtype;
  return emit({.op = Op::kReshape, .operands = {x}}, Type::tile(dtype, std::move(shape)));
}

ValueId Builder::transpose(ValueId x) {
  Type result = type(x);
  std::ranges::reverse(result.shape);
  return emit({.op = Op::kTranspose, .operands = {x}}, std::move(result));
}

ValueId Builder::slice(ValueId x, std::vector<int64_t> offsets, std::vector<int> shape) {
  DType dtype = type(x).dtype;
  return emit({.op = Op::kSlice, .operands = {x}, .integers = std::move(offsets)},
              Type::tile(dtype, std::move(shape)));
}

ValueId Builder::concat(std::span<const ValueId> parts, int axis) {
  if (parts.empty()) throw InternalError("concat of no parts");
  Type result = type(parts[0]);
  for (ValueId part : parts.subspan(1)) {
    size_t rank = std::min(result.shape.size(), type(part).shape.size());
    if (axis < 0 || static_cast<size_t>(axis) >= rank) {
      throw InternalError(fmt::format("kernel @{}: concat along axis {} of {}", kernel_.name, axis,
                                      text(type(part))));
    }
    result.shape[axis] += type(part).shape[axis];
  }
  return emit({.op = Op::kConcat, .operands = {parts.begin(), parts.end()}, .axis = axis},
              std::move(result));
}

ValueId Builder::permute(ValueId x, std::vector<int64_t> bits, std::vector<int> shape) {
  DType dtype = type(x).dtype;
  return emit({.op = Op::kPermute, .operands = {x}, .integers = std::move(bits)},
              Type::tile(dtype, std::move(shape)));
}

ValueId Builder::reduce(Fn fn, ValueId x, int axis) {
  Type result = type(x);
  if (axis >= 0 && static_cast<size_t>(axis) < result.shape.size()) {
    result.shape.erase(result.shape.begin() + axis);
  }
  return emit({.op = Op::kReduce, .fn = fn, .operands = {x}, .axis = axis}, std::move(result));
}

// ---- tables and dots

ValueId Builder::lookup(ValueId table, ValueId codes) {
  Type result = Type::tile(type(table).dtype, type(codes).shape);
  return emit({.op = Op::kLookup, .operands = {table, codes}}, std::move(result));
}

ValueId Builder::dot(ValueId acc, ValueId a, ValueId b) { return grouped_dot(acc, a, b, 0); }

ValueId Builder::dot_tf32(ValueId acc, ValueId a, ValueId b) {
  Type result = type(acc);
  return emit({.op = Op::kDot, .operands = {acc, a, b}, .tf32 = true}, std::move(result));
}

ValueId Builder::grouped_dot(ValueId acc, ValueId a, ValueId b, int groups) {
  Type result = type(acc);
  return emit({.op = Op::kDot, .operands = {acc, a, b}, .integer = groups}, std::move(result));
}

ValueId Builder::blockwise_dot(ValueId acc, ValueId a, ValueId b, int groups,
                               const Blocks& blocks) {
  Type result = type(acc);
  return emit({.op = Op::kDot,
               .operands = {acc, a, b},
               .integer = groups,
               .integers = {blocks.block, blocks.first, blocks.zeros}},
              std::move(result));
}

ValueId Builder::dot_i8(ValueId acc, ValueId a, ValueId b) {
  Type result = type(acc);
  return emit({.op = Op::kDotI8, .operands = {acc, a, b}}, std::move(result));
}

void Builder::tile_dot(const Access& c, const Access& a, const Access& b, const TileBlock& block) {
  append({.op = Op::kTileDot,
          .operands = {c.buffer, c.offset, a.buffer, a.offset, b.buffer, b.offset, block.distance,
                       block.k},
          .integers = {block.rows, block.columns}},
         {});
}

// ---- memory

ValueId Builder::alloc(DType dtype, int64_t elements) {
  return emit({.op = Op::kAlloc, .integer = elements}, Type::buffer(dtype));
}

namespace {

// Appends strides (row-major where none are given) and extents (whole where none are given).
void add_access(Builder& builder, const Access& access, const std::vector<int>& shape,
                std::vector<ValueId>& operands) {
  size_t rank = shape.size();
  int64_t contiguous = 1;
  std::vector<ValueId> strides(rank);
  for (size_t d = rank; d-- > 0; contiguous *= shape[d]) strides[d] = builder.index(contiguous);
  if (!access.strides.empty()) strides = access.strides;
  std::vector<ValueId> extents(rank, kNone);
  if (!access.extents.empty()) extents = access.extents;
  operands.insert(operands.end(), strides.begin(), strides.end());
  operands.insert(operands.end(), extents.begin(), extents.end());
}

}  // namespace

ValueId Builder::load(const Access& from, std::vector<int> shape, double fill) {
  Operation operation{.op = Op::kLoad, .operands = {from.buffer, from.offset}, .number = fill};
  add_access(*this, from, shape, operation.operands);
  return emit(std::move(operation), Type::tile(type(from.buffer).dtype, std::move(shape)));
}

void Builder::store(const Access& to, ValueId value) {
  Operation operation{.op = Op::kStore, .operands = {to.buffer, to.offset, value}};
  const std::vector<int> shape = type(value).shape;  // types move when one is added
  add_access(*this, to, shape, operation.operands);
  append(std::move(operation), {});
}

ValueId Builder::gather(ValueId buffer, ValueId offset, ValueId indices, ValueId mask,
                        double fill) {
  Type result = Type::tile(type(buffer).dtype, type(indices).shape);
  return emit({.op = Op::kGather, .operands = {buffer, offset, indices, mask}, .number = fill},
              std::move(result));
}

void Builder::scatter(ValueId buffer, ValueId offset, ValueId indices, ValueId value,
                      ValueId mask) {
  append({.op = Op::kScatter, .operands = {buffer, offset, indices, value, mask}}, {});
}

void Builder::prefetch(ValueId buffer, ValueId offset) {
  append({.op = Op::kPrefetch, .operands = {buffer, offset}}, {});
}

ValueId Builder::arrive(ValueId counters, ValueId offset) {
  return emit({.op = Op::kArrive, .operands = {counters, offset}}, Type::index());
}

// ---- pipelines

ValueId Builder::ring(DType dtype, std::vector<int> shape, int stages) {
  return emit({.op = Op::kRing, .integer = stages}, Type::ring(dtype, std::move(shape)));
}

void Builder::bulk_load(ValueId ring, ValueId stage, ValueId buffer, ValueId offset) {
  append({.op = Op::kBulkLoad, .operands = {ring, stage, buffer, offset}}, {});
}

void Builder::tma_load(ValueId ring, ValueId stage, const Matrix& from, ValueId row, ValueId column,
                       int groups) {
  append({.op = Op::kTmaLoad,
          .operands = {ring, stage, from.buffer, row, column, from.rows, from.columns, from.stride},
          .integer = groups},
         {});
}

ValueId Builder::read(ValueId ring, ValueId stage, std::vector<int> shape, ValueId offset,
                      std::vector<int64_t> strides, ValueId extent) {
  return emit(
      {.op = Op::kRead, .operands = {ring, stage, offset, extent}, .integers = std::move(strides)},
      Type::tile(type(ring).dtype, std::move(shape)));
}

std::vector<ValueId> Builder::pipeline(int stages, ValueId lo, ValueId hi,
                                       std::vector<ValueId> initial, const ProduceBody& produce,
                                       const ConsumeBody& consume) {
  Operation operation{.op = Op::kPipeline, .operands = {lo, hi}, .integer = stages};
  std::vector<ValueId> counter{define(Type::index()), define(Type::index())};
  operation.regions.push_back(collect(counter, [&]() -> std::vector<ValueId> {
    produce(counter[0], counter[1]);
    return {};
  }));
  std::vector<Type> carried;
  std::vector<ValueId> arguments{define(Type::index()), define(Type::index())};
  for (ValueId value : initial) {
    operation.operands.push_back(value);
    carried.push_back(type(value));
    arguments.push_back(define(carried.back()));
  }
  operation.regions.push_back(collect(arguments, [&] {
    return consume(arguments[0], arguments[1], std::span(arguments).subspan(2));
  }));
  return append(std::move(operation), std::move(carried));
}

// ---- control

Region Builder::collect(std::vector<ValueId> arguments,
                        const std::function<std::vector<ValueId>()>& inside) {
  open_.emplace_back();
  open_.back().arguments = std::move(arguments);
  std::vector<ValueId> results = inside ? inside() : std::vector<ValueId>{};
  append({.op = Op::kYield, .operands = std::move(results)}, {});
  Region region = std::move(open_.back());
  open_.pop_back();
  return region;
}

std::vector<ValueId> Builder::loop(ValueId lo, ValueId hi, ValueId step,
                                   std::vector<ValueId> initial, const LoopBody& body) {
  std::vector<Type> carried;
  std::vector<ValueId> arguments{define(Type::index())};
  for (ValueId value : initial) {
    carried.push_back(type(value));
    arguments.push_back(define(carried.back()));
  }
  Operation operation{.op = Op::kFor, .operands = {lo, hi, step}};
  operation.operands.insert(operation.operands.end(), initial.begin(), initial.end());
  operation.regions.push_back(
      collect(arguments, [&] { return body(arguments[0], std::span(arguments).subspan(1)); }));
  return append(std::move(operation), std::move(carried));
}

std::vector<ValueId> Builder::branch(ValueId condition, const BranchBody& then_body,
                                     const BranchBody& else_body) {
  Operation operation{.op = Op::kIf, .operands = {condition}};
  operation.regions.push_back(collect({}, then_body));
  operation.regions.push_back(collect({}, else_body));
  std::vector<Type> results;
  for (ValueId value : operation.regions[0].operations.back().operands) {
    results.push_back(type(value));
  }
  return append(std::move(operation), std::move(results));
}

Kernel Builder::finish() {
  if (open_.size() != 1) throw InternalError("finish() inside a loop or branch");
  kernel_.body = std::move(open_.back());
  kernel_.body.operations.insert(kernel_.body.operations.begin(),
                                 std::make_move_iterator(prologue_.begin()),
                                 std::make_move_iterator(prologue_.end()));
  if (Support support = verify(kernel_); !support) throw InternalError(support.reason);
  return std::move(kernel_);
}

}  // namespace tenon::codegen
