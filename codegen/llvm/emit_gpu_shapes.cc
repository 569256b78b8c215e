// Rearranging tiles, and tables.
#include <llvm/IR/IRBuilder.h>

#include "codegen/exchange.h"
#include "codegen/llvm/emit_gpu.h"

namespace tenon::codegen {

void GpuEmitter::shape_operation(const Operation& op) {
  if (folded_.contains(&op)) return;
  auto compute = [&]() -> Tile {
    if (is_move(kernel_, op)) {
      if (auto origins = registers_of_move(kernel_, op, layouts_)) {
        Tile out;
        for (const RegisterOrigin& from : *origins) {
          out.push_back(
              tile(op.operands[static_cast<size_t>(from.operand)])[static_cast<size_t>(from.reg)]);
        }
        return out;
      }
    }
    switch (op.op) {
      case Op::kBroadcast:
        return broadcast(op);
      case Op::kReshape:
        return reshape(op);
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

GpuEmitter::Tile GpuEmitter::reshape(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  Layout source = layouts_[op.operands[0]], target = layouts_[op.results[0]];
  if (from.shape.empty() || to.shape.empty()) {
    return Tile(static_cast<size_t>(target.registers()), tile(op.operands[0])[0]);
  }
  int columns = to.shape.back();
  auto place = [&](Value* row, Value* column) {
    return std::pair<Value*, Value*>{number(0), plus(times(row, columns), column)};
  };
  return redistribute(tile(op.operands[0]), source, from, target, to, place, from.shape.back());
}

GpuEmitter::Tile GpuEmitter::broadcast(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  const Layout& target = layouts_[op.results[0]];
  if (from.elements() == 1) {
    return Tile(static_cast<size_t>(target.registers()), tile(op.operands[0])[0]);
  }
  int from_columns = from.shape.back();
  bool one_row = from.shape.size() == 1 || from.shape[0] == 1, one_column = from_columns == 1;
  auto place = [&](Value* row, Value* column) {
    return std::pair<Value*, Value*>{one_row ? number(0) : row, one_column ? number(0) : column};
  };
  return redistribute(tile(op.operands[0]), layouts_[op.operands[0]], from, target, to, place,
                      from_columns);
}

GpuEmitter::Tile GpuEmitter::transpose(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  const Layout &source = layouts_[op.operands[0]], &target = layouts_[op.results[0]];
  auto place = [](Value* row, Value* column) { return std::pair{column, row}; };
  int pitch = exchange_pitch(from, source, target, [&](int64_t element) {
    return origin_of(kernel_, op, element).element;
  });
  return redistribute(tile(op.operands[0]), source, from, target, to, place, pitch);
}

GpuEmitter::Tile GpuEmitter::slice(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  if (to.shape.empty()) return tile(op.operands[0]);
  int64_t first_row = to.shape.size() == 2 ? op.integers[0] : 0, first_column = op.integers.back();
  auto place = [&](Value* row, Value* column) {
    return std::pair{plus(row, first_row), plus(column, first_column)};
  };
  return redistribute(tile(op.operands[0]), layouts_[op.operands[0]], from, layouts_[op.results[0]],
                      to, place, from.shape.back());
}

GpuEmitter::Tile GpuEmitter::concat(const Operation& op) {
  const Type& to = type(op.results[0]);
  const Layout& target = layouts_[op.results[0]];
  int rows = to.shape.size() == 2 ? to.shape[0] : 1, columns = to.shape.back();
  bool along_last = op.axis + 1 == static_cast<int>(to.shape.size());
  Grid grid = make_grid(to.dtype, rows, columns);
  barrier_before(grid.offset, grid.bytes, /*write=*/true);
  int position = 0;
  for (ValueId id : op.operands) {
    const Type& part = type(id);
    write_grid(grid, tile(id), layouts_[id], part, along_last ? 0 : position,
               along_last ? position : 0);
    position += part.shape[static_cast<size_t>(op.axis)];
  }
  barrier_before(grid.offset, grid.bytes, /*write=*/false);
  Tile out;
  for (int r = 0; r < target.registers(); ++r) {
    Place at = place(target, r, to);
    Value* element = plus(times(at.row, columns), at.column);
    if (at.live) element = ir_.CreateSelect(at.live, element, number(0));
    out.push_back(read_shared(to.dtype, grid.offset, element));
  }
  return out;
}

GpuEmitter::Tile GpuEmitter::permute(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  int columns = to.shape.back();
  auto place = [&](Value* row, Value* column) {
    Value* number_to = plus(times(row, columns), column);
    Value* out = number(0);
    for (size_t i = 0; i < op.integers.size(); ++i) {
      Value* bit = ir_.CreateAnd(ir_.CreateLShr(number_to, static_cast<uint64_t>(i)), number(1));
      out = ir_.CreateOr(out, ir_.CreateShl(bit, static_cast<uint64_t>(op.integers[i])));
    }
    return std::pair<Value*, Value*>{number(0), out};
  };
  return redistribute(tile(op.operands[0]), layouts_[op.operands[0]], from, layouts_[op.results[0]],
                      to, place, from.shape.back());
}

// In place, or through shared memory, where the same bytes are narrower elements.
GpuEmitter::Tile GpuEmitter::bitcast_narrower(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  const Layout& target = layouts_[op.results[0]];
  Tile out;
  if (auto origins = registers_of_move(kernel_, op, layouts_)) {
    for (const RegisterOrigin& origin : *origins) {
      out.push_back(
          part_of(op, tile(op.operands[0])[static_cast<size_t>(origin.reg)], origin.part));
    }
    return out;
  }
  int rows = from.shape.size() == 2 ? from.shape[0] : 1, columns = to.shape.back();
  Grid grid = make_grid(from.dtype, rows, from.shape.back());
  barrier_before(grid.offset, grid.bytes, /*write=*/true);
  write_grid(grid, tile(op.operands[0]), layouts_[op.operands[0]], from);
  barrier_before(grid.offset, grid.bytes, /*write=*/false);
  for (int r = 0; r < target.registers(); ++r) {
    Place at = place(target, r, to);
    Value* element = plus(times(at.row, columns), at.column);
    if (at.live) element = ir_.CreateSelect(at.live, element, number(0));
    out.push_back(read_shared(to.dtype, grid.offset, element));
  }
  return out;
}

void GpuEmitter::lookup(const Operation& op) {
  const Type &table = type(op.operands[0]), &codes = type(op.operands[1]);
  int entries = table.shape[0];
  Tile in = in_layout(op.operands[1], layouts_[op.results[0]]);
  const Operation* definition = definitions_[op.operands[0]];
  int64_t offset = 0;
  if (auto kept = tables_.find(definition); kept != tables_.end()) {
    offset = kept->second;
  } else {
    Grid grid = make_grid(table.dtype, 1, entries);
    barrier_before(grid.offset, grid.bytes, /*write=*/true);
    write_grid(grid, tile(op.operands[0]), layouts_[op.operands[0]], table);
    barrier_before(grid.offset, grid.bytes, /*write=*/false);
    offset = grid.offset;
  }
  Tile out;
  for (Value* code : in) {
    Value* entry = ir_.CreateAnd(cast(codes.dtype, DType::kU32, code), number(entries - 1));
    out.push_back(read_shared(table.dtype, offset, entry));
  }
  values_[op.results[0]] = std::move(out);
}

}  // namespace tenon::codegen
