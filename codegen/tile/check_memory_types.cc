// Loads, stores, products in memory, rings, pipelines and loops.
#include "codegen/tile/type_checker.h"

namespace tenon::codegen {

// Strides, then extents, one of each per dimension.
void TypeChecker::check_access(size_t first, const Type& value) {
  size_t rank = value.shape.size();
  require(op_.operands.size() == first + 2 * rank, "needs a stride and an extent per dimension");
  for (size_t d = 0; d < rank; ++d) {
    is_index(first + d);
    if (!absent(first + rank + d)) is_index(first + rank + d);
  }
}

void TypeChecker::check_memory() {
  if (op_.op == Op::kAlloc) {
    require(result().kind == Type::Kind::kBuffer, "the result must be a buffer");
    int64_t bytes = (bit_width(result().dtype) + 7) / 8;
    require(op_.integer > 0 && op_.integer <= kMaxScratchBytes / bytes,
            "{} elements of {} are outside 1 … {} bytes", op_.integer, tenon::name(result().dtype),
            kMaxScratchBytes);
    return;
  }
  DType dtype = buffer(0).dtype;
  is_index(1);
  switch (op_.op) {
    case Op::kLoad:
      same(Type::tile(dtype, result().shape), result(), "the result");
      return check_access(2, result());
    case Op::kStore:
      same(Type::tile(dtype, tile(2).shape), operand(2), "the value");
      return check_access(3, operand(2));
    case Op::kGather:
    case Op::kScatter: {
      bool gather = op_.op == Op::kGather;
      require(is_integer(tile(2).dtype), "indices must be integers, are {}", operand(2));
      same(Type::tile(dtype, operand(2).shape), gather ? result() : operand(3),
           gather ? "the result" : "the value");
      size_t mask = gather ? 3 : 4;
      if (absent(mask)) return;
      return same(Type::tile(DType::kBool, operand(2).shape), operand(mask), "the mask");
    }
    case Op::kArrive:
      require(dtype == DType::kI32, "counters are i32, got {}", tenon::name(dtype));
      return same(Type::index(), result(), "the result");
    default:  // kPrefetch
      return;
  }
}

void TypeChecker::check_tile_dot() {
  require(buffer(0).dtype == DType::kF32, "sums are f32, got {}", tenon::name(operand(0).dtype));
  for (size_t i : {2, 4}) {
    require(buffer(i).dtype == DType::kBF16, "operand {} must be bf16, is {}", i, operand(i));
  }
  for (size_t i : {1, 3, 5, 6, 7}) is_index(i);
  require(op_.integers.size() == 2, "needs rows and columns");
  for (int64_t size : op_.integers) {
    require(size == 16 || size == 32, "a block has 16 or 32 rows and columns, not {}", size);
  }
}

void TypeChecker::check_for() {
  require(op_.operands.size() == 3 + op_.results.size(),
          "needs lo, hi, step and an initial value per result");
  for (size_t i = 0; i < 3; ++i) is_index(i);
  for (size_t i = 0; i < op_.results.size(); ++i) {
    require(operand(3 + i).kind != Type::Kind::kBuffer, "a buffer cannot be carried");
    same(operand(3 + i), result(i), "a result");
  }
}

void TypeChecker::check_ring_op() {
  if (op_.op == Op::kRing) {
    require(result().kind == Type::Kind::kRing && !result().shape.empty(),
            "the result must be a ring of tiles, is {}", result());
    return require(op_.integer >= 1 && op_.integer <= kMaxStages, "{} stages are outside 1 … {}",
                   op_.integer, kMaxStages);
  }
  const Type& ring = operand(0);
  require(ring.kind == Type::Kind::kRing, "operand 0 must be a ring, is {}", ring);
  is_index(1);
  if (op_.op == Op::kRead) {
    if (!absent(2)) is_index(2);
    if (!absent(3)) is_index(3);
    same(Type::tile(ring.dtype, result().shape), result(), "the result");
    require(absent(3) || result().shape.size() == 2, "only tiles of rank 2 have rows to leave out");
    require(op_.integers.empty() || op_.integers.size() == result().shape.size(),
            "needs a stride per dimension");
    int64_t last = op_.integers.empty() ? result().elements() - 1 : 0;
    for (size_t d = 0; d < op_.integers.size(); ++d) {
      require(op_.integers[d] >= 0, "strides cannot be negative");
      last = checked_add(last, checked_mul(op_.integers[d], result().shape[d] - 1));
    }
    return require(last < ring.elements(), "{} is more than {} holds", result(), ring);
  }
  bool is_tma = op_.op == Op::kTmaLoad;
  require(buffer(2).dtype == ring.dtype, "{} cannot be fetched into {}", operand(2), ring);
  if (is_tma) {
    require(ring.shape.size() == 2, "a TMA load needs stages of rank 2, {} has not", ring);
    require(op_.integer >= 0 && (op_.integer == 0 || ring.shape[0] % op_.integer == 0),
            "{} cannot hold {} TMA boxes", ring, op_.integer);
  }
  for (size_t i = 3; i < op_.operands.size(); ++i) is_index(i);
}

void TypeChecker::check_pipeline() {
  require(op_.operands.size() == 2 + op_.results.size(),
          "needs lo, hi and an initial value per result");
  is_index(0), is_index(1);
  for (size_t i = 0; i < op_.results.size(); ++i) {
    require(operand(2 + i).kind == Type::Kind::kTile || operand(2 + i).kind == Type::Kind::kIndex,
            "{} cannot be carried", operand(2 + i));
    same(operand(2 + i), result(i), "a result");
  }
  require(op_.integer >= 1 && op_.integer <= kMaxStages, "{} stages are outside 1 … {}",
          op_.integer, kMaxStages);
}

}  // namespace tenon::codegen
