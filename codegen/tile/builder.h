// Writes tile kernels. Operations are appended where the builder stands; `loop` and `branch` take
// the inside as a function. Checks types as it goes (InternalError names the op). Elementwise
// operations splat tiles of rank 0 to the shape of the others.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/convert.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

struct Access {
  ValueId buffer = kNone;
  ValueId offset = kNone;             // in elements
  std::vector<ValueId> strides = {};  // one per tile dimension; empty: contiguous row-major
  std::vector<ValueId> extents = {};  // one per tile dimension, kNone = whole; empty: whole
};

// C++ leaves open in which order a call evaluates its arguments, and compilers differ: of
// b.add(b.mul(x, y), b.load(…)) some write the load first. Braces are evaluated from left to right,
// so operands that write operations stand in them, b.add({b.mul(x, y), b.load(…)}), or get names
// first. Then every compiler writes the same kernel (scripts/check_operand_order.py).
struct Pair {
  ValueId a, b;
};
struct Triple {
  ValueId a, b, c;
};
struct Range {
  ValueId lo, hi, step;
};
struct Stored {
  Access to;
  ValueId value;
};

class Builder {
 public:
  explicit Builder(std::string kernel_name);

  ValueId buffer(std::string name, DType dtype, bool constant = false);
  ValueId index_parameter(std::string name);

  // Indices. Constants fold, so callers need not care.
  ValueId task();
  ValueId index(int64_t value);
  ValueId add(ValueId a, ValueId b);  // indices or tiles: one name for one idea
  ValueId sub(ValueId a, ValueId b);
  ValueId mul(ValueId a, ValueId b);
  ValueId div(ValueId a, ValueId b);
  ValueId rem(ValueId a, ValueId b);
  ValueId min(ValueId a, ValueId b);
  ValueId max(ValueId a, ValueId b);
  ValueId less(ValueId a, ValueId b);  // indices: bool[]; tiles: bool tile
  ValueId equal(ValueId a, ValueId b);
  ValueId select(ValueId condition, ValueId a, ValueId b);
  ValueId index_from(ValueId scalar_tile);

  ValueId constant(DType dtype, double value, std::vector<int> shape = {});
  ValueId integer_constant(DType dtype, int64_t value, std::vector<int> shape = {});
  ValueId splat(ValueId scalar, std::vector<int> shape);
  ValueId from_index(ValueId index, DType dtype);
  ValueId iota(DType dtype, std::vector<int> shape, int axis);

  ValueId unary(Fn fn, ValueId x);
  ValueId quantize(Fn fn, ValueId x, bool saturate);
  ValueId quantize(Fn fn, ValueId x, EncodeRule rule);
  ValueId binary(Fn fn, ValueId a, ValueId b);
  ValueId fma(ValueId a, ValueId b, ValueId c);
  ValueId compare(Fn fn, ValueId a, ValueId b);
  ValueId cast(ValueId x, DType dtype);
  ValueId bitcast(ValueId x, DType dtype);  // narrower: the last dimension grows
  ValueId broadcast(ValueId x, std::vector<int> shape);
  ValueId reshape(ValueId x, std::vector<int> shape);
  ValueId transpose(ValueId x);
  ValueId slice(ValueId x, std::vector<int64_t> offsets, std::vector<int> shape);
  ValueId concat(std::span<const ValueId> parts, int axis);
  // integers as of kPermute: bit i of the result comes from bit bits[i].
  ValueId permute(ValueId x, std::vector<int64_t> bits, std::vector<int> shape);
  ValueId reduce(Fn fn, ValueId x, int axis);
  ValueId lookup(ValueId table, ValueId codes);
  ValueId dot(ValueId acc, ValueId a, ValueId b);
  // Of f32 operands that are rounded first: see kDot.
  ValueId dot_tf32(ValueId acc, ValueId a, ValueId b);
  ValueId grouped_dot(ValueId acc, ValueId a, ValueId b, int groups);
  // A column for the sum of each block of k: see kDot.
  struct Blocks {
    int block, first, zeros;  // see kDot
  };
  ValueId blockwise_dot(ValueId acc, ValueId a, ValueId b, int groups, const Blocks& blocks);
  ValueId dot_i8(ValueId acc, ValueId a, ValueId b);
  // c += a * b: see kTileDot. Accesses are a buffer and an offset.
  struct TileBlock {
    int rows, columns;
    ValueId distance, k;
  };
  void tile_dot(const Access& c, const Access& a, const Access& b, const TileBlock& block);
  // A rank-1 tile holding these numbers (tables, permutations), kept as constants in the code.
  ValueId table(DType dtype, const std::vector<double>& values);

  ValueId alloc(DType dtype, int64_t elements);
  ValueId load(const Access& from, std::vector<int> shape, double fill = 0);
  void store(const Access& to, ValueId value);
  ValueId gather(ValueId buffer, ValueId offset, ValueId indices, ValueId mask = kNone,
                 double fill = 0);
  void scatter(ValueId buffer, ValueId offset, ValueId indices, ValueId value,
               ValueId mask = kNone);
  void prefetch(ValueId buffer, ValueId offset);

  ValueId arrive(ValueId counters, ValueId offset);

  ValueId ring(DType dtype, std::vector<int> shape, int stages);
  void bulk_load(ValueId ring, ValueId stage, ValueId buffer, ValueId offset);
  struct Matrix {
    ValueId buffer = kNone, rows = kNone, columns = kNone, stride = kNone;
  };
  void tma_load(ValueId ring, ValueId stage, const Matrix& from, ValueId row, ValueId column,
                int groups = 0);
  ValueId read(ValueId ring, ValueId stage, std::vector<int> shape, ValueId offset = kNone,
               std::vector<int64_t> strides = {}, ValueId extent = kNone);
  using ProduceBody = std::function<void(ValueId counter, ValueId stage)>;
  using ConsumeBody =
      std::function<std::vector<ValueId>(ValueId counter, ValueId stage, std::span<const ValueId>)>;
  std::vector<ValueId> pipeline(int stages, ValueId lo, ValueId hi, std::vector<ValueId> initial,
                                const ProduceBody& produce, const ConsumeBody& consume);

  using LoopBody = std::function<std::vector<ValueId>(ValueId counter, std::span<const ValueId>)>;
  std::vector<ValueId> loop(ValueId lo, ValueId hi, ValueId step, std::vector<ValueId> initial,
                            const LoopBody& body);
  using BranchBody = std::function<std::vector<ValueId>()>;
  std::vector<ValueId> branch(ValueId condition, const BranchBody& then_body,
                              const BranchBody& else_body = {});

  // Operands in braces.
  ValueId add(Pair x) { return add(x.a, x.b); }
  ValueId sub(Pair x) { return sub(x.a, x.b); }
  ValueId mul(Pair x) { return mul(x.a, x.b); }
  ValueId div(Pair x) { return div(x.a, x.b); }
  ValueId rem(Pair x) { return rem(x.a, x.b); }
  ValueId min(Pair x) { return min(x.a, x.b); }
  ValueId max(Pair x) { return max(x.a, x.b); }
  ValueId less(Pair x) { return less(x.a, x.b); }
  ValueId equal(Pair x) { return equal(x.a, x.b); }
  ValueId binary(Fn fn, Pair x) { return binary(fn, x.a, x.b); }
  ValueId compare(Fn fn, Pair x) { return compare(fn, x.a, x.b); }
  ValueId select(Triple x) { return select(x.a, x.b, x.c); }
  ValueId fma(Triple x) { return fma(x.a, x.b, x.c); }
  void store(const Stored& x) { store(x.to, x.value); }
  std::vector<ValueId> loop(Range range, std::vector<ValueId> initial, const LoopBody& body) {
    return loop(range.lo, range.hi, range.step, std::move(initial), body);
  }

  const Type& type(ValueId value) const;
  // Appends an operation as it is, with fresh results of these types: for passes that copy kernels.
  std::vector<ValueId> append(Operation operation, std::vector<Type> results);

  Kernel finish();  // verified; throws InternalError

 private:
  ValueId define(Type type);
  ValueId emit(Operation operation, Type result);
  ValueId index_binary(Op op, ValueId a, ValueId b);
  ValueId elementwise(Op op, Fn fn, std::vector<ValueId> operands, DType result);
  void check_operands(const Operation& operation) const;
  std::optional<int64_t> constant_index(ValueId value) const;
  Region collect(std::vector<ValueId> arguments,
                 const std::function<std::vector<ValueId>()>& inside);

  Kernel kernel_;
  // Index constants and the task number: made once, at the head of the body.
  std::vector<Operation> prologue_;
  std::map<int64_t, ValueId> index_constants_;
  std::unordered_map<ValueId, int64_t> index_values_;
  ValueId task_ = kNone;
  std::vector<Region> open_;  // innermost last
};

}  // namespace tenon::codegen
