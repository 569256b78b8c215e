// Making tiles and rearranging them.
#include <llvm/IR/IRBuilder.h>

#include <bit>
#include <numeric>

#include "codegen/llvm/emit_host.h"

namespace tenon::codegen {

void HostEmitter::make_tile(const Operation& op) {
  const Type& result = type(op.results[0]);
  Tile& out = values_[op.results[0]];
  switch (op.op) {
    case Op::kConstant: {
      if (op.integers.empty()) {
        out = splat_pieces(constant_element(result.dtype, op.number, op.integer), result);
        return;
      }
      std::vector<llvm::Constant*> entries;
      for (int64_t entry : op.integers) {
        entries.push_back(llvm::cast<llvm::Constant>(
            constant_element(result.dtype, std::bit_cast<double>(entry), entry)));
      }
      out = {llvm::ConstantVector::get(entries)};
      return;
    }
    case Op::kSplat:
      out = splat_pieces(single(op.operands[0]), result);
      return;
    case Op::kFromIndex:
      out = {cast(DType::kI64, result.dtype, single(op.operands[0]))};
      return;
    default: {  // kIota
      std::vector<llvm::Constant*> entries;
      int columns = result.shape.back();
      for (int64_t i = 0; i < result.elements(); ++i) {
        int64_t position = op.axis + 1 == static_cast<int>(result.shape.size()) ? i % columns
                                                                                 : i / columns;
        entries.push_back(llvm::cast<llvm::Constant>(
            constant_element(result.dtype, static_cast<double>(position), position)));
      }
      out = from_flat(llvm::ConstantVector::get(entries), result);
    }
  }
}

void HostEmitter::shape_operation(const Operation& op) {
  const Type& result = type(op.results[0]);
  auto compute = [&]() -> Tile {
    switch (op.op) {
      case Op::kBroadcast: return broadcast(op);
      case Op::kReshape: {
        const Type& from = type(op.operands[0]);
        return from_flat(flat(tile(op.operands[0]), from), result);
      }
      case Op::kTranspose: return transpose(op);
      case Op::kSlice: return slice(op);
      case Op::kConcat: return concat(op);
      default: return reduce(op);
    }
  };
  Tile out = compute();
  values_[op.results[0]] = std::move(out);
}

HostEmitter::Tile HostEmitter::broadcast(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  const Tile& x = tile(op.operands[0]);
  if (from.elements() == 1) {
    Value* scalar = from.shape.empty() ? x[0] : lane(flat(x, from), 0);
    return splat_pieces(scalar, to);
  }
  if (to.shape.size() == 1) return x;
  int m = to.shape[0], n = to.shape[1];
  bool one_row = from.shape.size() == 1 || from.shape[0] == 1;
  std::vector<Value*> out;
  if (one_row) {
    Value* row = from.shape.size() == 1 ? x[0] : rows(x, from)[0];
    out.assign(static_cast<size_t>(m), row);
  } else if (from.shape[1] == n) {
    return x;
  } else {  // one column: packed
    for (int row = 0; row < m; ++row) {
      out.push_back(ir_.CreateVectorSplat(static_cast<unsigned>(n), lane(x[0], row)));
    }
  }
  return from_rows(std::move(out), to);
}

HostEmitter::Tile HostEmitter::slice(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  const Tile& x = tile(op.operands[0]);
  if (to.shape.empty()) return x;
  int column = static_cast<int>(op.integers.back()), columns = to.shape.back();
  if (to.shape.size() == 1) return {subvector(x[0], column, columns)};
  std::vector<Value*> all = rows(x, from), out;
  for (int row = 0; row < to.shape[0]; ++row) {
    out.push_back(subvector(all[static_cast<size_t>(op.integers[0]) + row], column, columns));
  }
  return from_rows(std::move(out), to);
}

HostEmitter::Tile HostEmitter::concat(const Operation& op) {
  const Type& to = type(op.results[0]);
  std::vector<std::vector<Value*>> parts;
  for (ValueId id : op.operands) {
    parts.push_back(to.shape.size() == 1 ? tile(id) : rows(tile(id), type(id)));
  }
  std::vector<Value*> out;
  if (to.shape.size() == 2 && op.axis == 0) {
    for (auto& part : parts) out.insert(out.end(), part.begin(), part.end());
    return from_rows(std::move(out), to);
  }
  for (size_t row = 0; row < parts[0].size(); ++row) {
    std::vector<Value*> across;
    for (auto& part : parts) across.push_back(part[row]);
    out.push_back(join(std::move(across)));
  }
  return to.shape.size() == 1 ? out : from_rows(std::move(out), to);
}

// size x size by log2(size) rounds of interleaving row i with row i + size/2.
std::vector<llvm::Value*> HostEmitter::transpose_square(std::vector<Value*> rows, int size) {
  std::vector<int> low, high;
  for (int i = 0; i < size / 2; ++i) {
    low.insert(low.end(), {i, size + i});
    high.insert(high.end(), {size / 2 + i, size + size / 2 + i});
  }
  for (int round = 1; round < size; round *= 2) {
    std::vector<Value*> next;
    for (int i = 0; i < size / 2; ++i) {
      Value *a = rows[static_cast<size_t>(i)], *b = rows[static_cast<size_t>(i + size / 2)];
      next.push_back(ir_.CreateShuffleVector(a, b, low));
      next.push_back(ir_.CreateShuffleVector(a, b, high));
    }
    rows = std::move(next);
  }
  return rows;
}

HostEmitter::Tile HostEmitter::transpose(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  int m = from.shape[0], n = from.shape[1], block = std::gcd(m, n);
  block = block & -block;  // the largest power of two that divides both
  if (block < 4) {
    std::vector<int> order;
    for (int64_t i = 0; i < to.elements(); ++i) {
      order.push_back(static_cast<int>(i % m * n + i / m));
    }
    return from_flat(ir_.CreateShuffleVector(flat(tile(op.operands[0]), from), order), to);
  }
  std::vector<Value*> in = rows(tile(op.operands[0]), from);
  std::vector<std::vector<Value*>> out(static_cast<size_t>(n));
  for (int row = 0; row < m; row += block) {
    for (int column = 0; column < n; column += block) {
      std::vector<Value*> square;
      for (int i = 0; i < block; ++i) {
        square.push_back(subvector(in[static_cast<size_t>(row + i)], column, block));
      }
      square = transpose_square(std::move(square), block);
      for (int i = 0; i < block; ++i) {
        out[static_cast<size_t>(column + i)].push_back(square[static_cast<size_t>(i)]);
      }
    }
  }
  std::vector<Value*> joined;
  for (auto& parts : out) joined.push_back(join(std::move(parts)));
  return from_rows(std::move(joined), to);
}

// Folds the upper half onto the lower until one lane is left.
llvm::Value* HostEmitter::reduce_lanes(Fn fn, DType dtype, Value* vector) {
  int lanes = static_cast<int>(
      llvm::cast<llvm::FixedVectorType>(vector->getType())->getNumElements());
  while (lanes > 1) {
    int half = lanes / 2;
    Value* folded = binary(fn, dtype, subvector(vector, 0, half), subvector(vector, half, half));
    if (lanes % 2 == 1) {
      Value* odd = binary(fn, dtype, lane(folded, 0), lane(vector, lanes - 1));
      folded = ir_.CreateInsertElement(folded, odd, uint64_t{0});
    }
    vector = folded;
    lanes = half;
  }
  return lane(vector, 0);
}

HostEmitter::Tile HostEmitter::reduce(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  const Tile& x = tile(op.operands[0]);
  if (from.shape.size() == 1) return {reduce_lanes(op.fn, from.dtype, x[0])};
  if (from.shape[1] == 1) {  // packed: the column is one vector
    if (op.axis == 1) return x;
    return {ir_.CreateVectorSplat(1, reduce_lanes(op.fn, from.dtype, x[0]))};
  }
  std::vector<Value*> in = rows(x, from);
  if (op.axis == 0) {
    while (in.size() > 1) {  // a tree: shorter chains and smaller rounding errors
      std::vector<Value*> next;
      for (size_t i = 0; i + 1 < in.size(); i += 2) {
        next.push_back(binary(op.fn, from.dtype, in[i], in[i + 1]));
      }
      if (in.size() % 2 == 1) next.push_back(in.back());
      in = std::move(next);
    }
    return in;
  }
  Value* out = llvm::PoisonValue::get(piece_type(to));
  for (size_t row = 0; row < in.size(); ++row) {
    out = ir_.CreateInsertElement(out, reduce_lanes(op.fn, from.dtype, in[row]), row);
  }
  return {out};
}

}  // namespace tenon::codegen
