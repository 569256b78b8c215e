// Making tiles and rearranging them.
#include <llvm/IR/IRBuilder.h>

#include <algorithm>
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
      out = from_flat(llvm::ConstantVector::get(entries), result);
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
        int64_t position =
            op.axis + 1 == static_cast<int>(result.shape.size()) ? i % columns : i / columns;
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
      case Op::kBroadcast:
        return broadcast(op);
      case Op::kReshape: {
        const Type& from = type(op.operands[0]);
        return from_flat(flat(tile(op.operands[0]), from), result);
      }
      case Op::kTranspose:
        return transpose(op);
      case Op::kSlice:
        return slice(op);
      case Op::kConcat:
        return concat(op);
      case Op::kPermute:
        return permute(op);
      default:
        return reduce(op);
    }
  };
  Tile out = compute();
  values_[op.results[0]] = std::move(out);
}

HostEmitter::Tile HostEmitter::permute(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  std::vector<int> lanes(static_cast<size_t>(to.elements()));
  for (size_t element = 0; element < lanes.size(); ++element) {
    for (size_t bit = 0; bit < op.integers.size(); ++bit) {
      lanes[element] |= static_cast<int>(element >> bit & 1) << op.integers[bit];
    }
  }
  return from_flat(ir_.CreateShuffleVector(flat(tile(op.operands[0]), from), lanes), to);
}

HostEmitter::Tile HostEmitter::broadcast(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  const Tile& x = tile(op.operands[0]);
  if (from.elements() == 1) return splat_pieces(lane(x[0], 0), to);
  if (to.shape.size() == 1 || from.shape == to.shape) return x;
  int m = to.shape[0], n = to.shape[1];
  bool one_row = from.shape.size() == 1 || from.shape[0] == 1;
  if (one_row && !has_packed_rows(to)) {
    Tile out;
    for (int row = 0; row < m; ++row) out.insert(out.end(), x.begin(), x.end());
    return out;
  }
  std::vector<Value*> out;
  if (one_row) {
    out.assign(static_cast<size_t>(m), flat(x, from));
    return from_rows(std::move(out), to);
  }
  // One column, which is packed.
  Value* column = flat(x, from);
  Type row_type = Type::tile(to.dtype, {n});
  std::vector<Tile> rows;
  for (int row = 0; row < m; ++row) rows.push_back(splat_pieces(lane(column, row), row_type));
  if (!has_packed_rows(to)) return from_row_pieces(std::move(rows), to);
  for (Tile& row : rows) out.push_back(join(row));
  return from_rows(std::move(out), to);
}

HostEmitter::Tile HostEmitter::slice(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  const Tile& x = tile(op.operands[0]);
  if (to.shape.empty()) return x;
  int column = static_cast<int>(op.integers.back()), columns = to.shape.back();
  if (to.shape.size() == 1) return from_lines({subvector(flat(x, from), column, columns)});
  auto first = static_cast<size_t>(op.integers[0]), count = static_cast<size_t>(to.shape[0]);
  if (columns == from.shape[1] && !has_packed_rows(from)) {  // whole rows
    std::vector<Tile> all = row_pieces(x, from);
    return from_row_pieces({all.begin() + first, all.begin() + first + count}, to);
  }
  std::vector<Value*> all = rows(x, from), out;
  for (size_t row = 0; row < count; ++row) {
    out.push_back(subvector(all[first + row], column, columns));
  }
  return from_rows(std::move(out), to);
}

HostEmitter::Tile HostEmitter::concat(const Operation& op) {
  const Type& to = type(op.results[0]);
  std::vector<Value*> out;
  if (to.shape.size() == 1) {
    for (ValueId id : op.operands) out.insert(out.end(), tile(id).begin(), tile(id).end());
    return from_lines({join(std::move(out))});
  }
  if (op.axis == 0) {
    std::vector<Tile> all;
    for (ValueId id : op.operands) {
      for (Tile& row : row_pieces(tile(id), type(id))) all.push_back(std::move(row));
    }
    return from_row_pieces(std::move(all), to);
  }
  std::vector<std::vector<Value*>> parts;
  for (ValueId id : op.operands) parts.push_back(rows(tile(id), type(id)));
  for (size_t row = 0; row < parts[0].size(); ++row) {
    std::vector<Value*> across;
    for (auto& part : parts) across.push_back(part[row]);
    out.push_back(join(std::move(across)));
  }
  return from_rows(std::move(out), to);
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

// Lanes [first, first + count) of a line, padded at its end; `count` is a power of two.
llvm::Value* HostEmitter::columns_of(const Tile& pieces, int first, int count) {
  int start = 0;  // of the piece
  for (Value* piece : pieces) {
    int lanes =
        static_cast<int>(llvm::cast<llvm::FixedVectorType>(piece->getType())->getNumElements());
    if (first >= start && first + count <= start + lanes) {
      return subvector(piece, first - start, count);
    }
    start += lanes;
  }
  Value* line = join(pieces);
  auto* type = llvm::cast<llvm::FixedVectorType>(line->getType());
  int total = static_cast<int>(type->getNumElements());
  std::vector<int> lanes(static_cast<size_t>(count), -1);
  for (int i = 0; i < count && first + i < total; ++i) lanes[static_cast<size_t>(i)] = first + i;
  return ir_.CreateShuffleVector(line, lanes);
}

// A line of `lanes` from blocks of equal power-of-two width, the last of which may reach past it.
HostEmitter::Tile HostEmitter::line_from_blocks(const std::vector<Value*>& blocks, int lanes) {
  int width =
      static_cast<int>(llvm::cast<llvm::FixedVectorType>(blocks[0]->getType())->getNumElements());
  Tile out;
  int first = 0;
  for (int piece : piece_widths(lanes)) {
    size_t block = static_cast<size_t>(first / width);
    if (piece < width) {
      out.push_back(subvector(blocks[block], first % width, piece));
    } else {
      out.push_back(join({blocks.begin() + block, blocks.begin() + block + piece / width}));
    }
    first += piece;
  }
  return out;
}

// In square blocks that fit the registers; what fills up the last ones is never read again.
HostEmitter::Tile HostEmitter::transpose(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  int m = from.shape[0], n = from.shape[1];
  if (m == 1 || n == 1) return from_flat(flat(tile(op.operands[0]), from), to);
  int native = std::clamp(target_.vector_bits / bit_width(from.dtype), 4, 16);
  int block = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::min({m, n, native}))));
  std::vector<Tile> in = row_pieces(tile(op.operands[0]), from);
  std::vector<std::vector<Value*>> out(static_cast<size_t>((n + block - 1) / block * block));
  for (int row = 0; row < m; row += block) {
    for (int column = 0; column < n; column += block) {
      std::vector<Value*> square;
      for (int i = 0; i < block; ++i) {
        square.push_back(row + i < m ? columns_of(in[static_cast<size_t>(row + i)], column, block)
                                     : llvm::PoisonValue::get(square[0]->getType()));
      }
      square = transpose_square(std::move(square), block);
      for (int i = 0; i < block; ++i) {
        out[static_cast<size_t>(column + i)].push_back(square[static_cast<size_t>(i)]);
      }
    }
  }
  std::vector<Tile> rows;
  for (int column = 0; column < n; ++column) {
    rows.push_back(line_from_blocks(out[static_cast<size_t>(column)], m));
  }
  return from_row_pieces(std::move(rows), to);
}

// Folds the upper half onto the lower until one lane is left.
llvm::Value* HostEmitter::reduce_lanes(Fn fn, DType dtype, Value* vector) {
  int lanes =
      static_cast<int>(llvm::cast<llvm::FixedVectorType>(vector->getType())->getNumElements());
  for (int half = lanes / 2; half > 0; half /= 2) {
    vector = binary(fn, dtype, subvector(vector, 0, half), subvector(vector, half, half));
  }
  return lane(vector, 0);
}

// Pieces are powers of two, the widest first: each is folded onto what is left of those before.
llvm::Value* HostEmitter::reduce_line(Fn fn, DType dtype, std::span<Value* const> pieces) {
  Value* left = pieces[0];
  for (Value* piece : pieces.subspan(1)) {
    auto width = [](Value* v) {
      return static_cast<int>(llvm::cast<llvm::FixedVectorType>(v->getType())->getNumElements());
    };
    while (width(left) > width(piece)) {
      int half = width(left) / 2;
      left = binary(fn, dtype, subvector(left, 0, half), subvector(left, half, half));
    }
    left = binary(fn, dtype, left, piece);
  }
  return reduce_lanes(fn, dtype, left);
}

HostEmitter::Tile HostEmitter::reduce(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  const Tile& x = tile(op.operands[0]);
  if (from.shape.size() == 1) return {reduce_line(op.fn, from.dtype, x)};
  if (from.shape[1] == 1) {  // packed: the column is one line
    if (op.axis == 1) return x;
    return {ir_.CreateVectorSplat(1, reduce_line(op.fn, from.dtype, x))};
  }
  std::vector<Tile> in = row_pieces(x, from);
  if (op.axis == 1) {
    Value* out = llvm::PoisonValue::get(vector_of(element_type(to.dtype), to.shape[0]));
    for (size_t row = 0; row < in.size(); ++row) {
      // A packed row of three is a piece that is no power of two.
      Tile pieces = has_packed_rows(from) ? from_lines(in[row]) : in[row];
      out = ir_.CreateInsertElement(out, reduce_line(op.fn, from.dtype, pieces), row);
    }
    return from_lines({out});
  }
  while (in.size() > 1) {  // a tree: shorter chains and smaller rounding errors
    std::vector<Tile> next;
    for (size_t i = 0; i + 1 < in.size(); i += 2) {
      Tile sum;
      for (size_t p = 0; p < in[i].size(); ++p) {
        sum.push_back(binary(op.fn, from.dtype, in[i][p], in[i + 1][p]));
      }
      next.push_back(std::move(sum));
    }
    if (in.size() % 2 == 1) next.push_back(in.back());
    in = std::move(next);
  }
  return has_packed_rows(from) ? from_lines(in[0]) : in[0];
}

}  // namespace tenon::codegen
