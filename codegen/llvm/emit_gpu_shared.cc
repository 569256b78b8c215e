// What one thread has and another one needs.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <algorithm>

#include "codegen/exchange.h"
#include "codegen/llvm/emit_gpu.h"

namespace tenon::codegen {

namespace {

int64_t bytes_of(DType dtype) { return (bit_width(dtype) + 7) / 8; }

}  // namespace

// Of all threads that compute; barrier 0 is for the whole CTA.
void GpuEmitter::emit_barrier() {
  if (role_ == Role::kComputes) {
    ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier, {}, {number(1), number(threads_)});
  } else {
    ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {});
  }
  shared_.passed_barrier();
}

void GpuEmitter::barrier_before(int64_t offset, int64_t bytes, bool write) {
  if (!shared_.access(offset, bytes, write)) return;
  emit_barrier();
  shared_.access(offset, bytes, write);
}

llvm::Value* GpuEmitter::shared_pointer(int64_t offset) {
  return ir_.CreateConstInBoundsGEP1_64(ir_.getInt8Ty(), shared_base_,
                                        static_cast<uint64_t>(offset));
}

llvm::Value* GpuEmitter::shared_element(DType dtype, int64_t offset, Value* element) {
  Value* wide = ir_.CreateZExt(element, ir_.getInt64Ty());
  return ir_.CreateInBoundsGEP(memory_type(dtype), shared_pointer(offset), wide);
}

llvm::Value* GpuEmitter::read_shared(DType dtype, int64_t offset, Value* element) {
  llvm::Align alignment(static_cast<uint64_t>(bytes_of(dtype)));
  Value* loaded =
      ir_.CreateAlignedLoad(memory_type(dtype), shared_element(dtype, offset, element), alignment);
  return from_memory(dtype, loaded);
}

void GpuEmitter::write_shared(DType dtype, int64_t offset, Value* element, Value* value) {
  ir_.CreateAlignedStore(to_memory(dtype, value), shared_element(dtype, offset, element),
                         llvm::Align(static_cast<uint64_t>(bytes_of(dtype))));
}

GpuEmitter::Grid GpuEmitter::make_grid(DType dtype, int rows, int pitch) {
  Grid grid;
  grid.pitch = pitch;
  grid.bytes = int64_t{rows} * pitch * bytes_of(dtype);
  grid.offset = shared_.borrow(grid.bytes);
  return grid;
}

// Copies of an element write the same value, so they need no guard.
void GpuEmitter::write_grid(const Grid& grid, const Tile& tile, const Layout& layout,
                            const Type& type, int first_row, int first_column) {
  int width = exchange_width(type, layout, grid.pitch, first_column);
  for (int r = 0; r < layout.registers(); r += width) {
    Place at = place(layout, r, type);
    when(at.live, [&] {
      Value* element =
          plus(times(plus(at.row, first_row), grid.pitch), plus(at.column, first_column));
      store_vector(type.dtype, shared_element(type.dtype, grid.offset, element),
                   {tile.data() + r, static_cast<size_t>(width)});
    });
  }
}

GpuEmitter::Tile GpuEmitter::redistribute(const Tile& tile, const Layout& from,
                                          const Type& from_type, const Layout& to,
                                          const Type& to_type, const PlaceMap& source_of,
                                          int pitch) {
  auto count = static_cast<size_t>(to.registers());
  bool splat =
      is_uniform(tile[0]) && std::ranges::all_of(tile, [&](Value* v) { return v == tile[0]; });
  if (splat || from.elements() == 1) return Tile(count, tile[0]);
  DType dtype = from_type.dtype;
  int rows = from_type.shape.size() == 2 ? from_type.shape[0] : 1;
  Grid grid = make_grid(dtype, rows, pitch);
  barrier_before(grid.offset, grid.bytes, /*write=*/true);
  write_grid(grid, tile, from, from_type);
  barrier_before(grid.offset, grid.bytes, /*write=*/false);
  Tile out;
  for (int r = 0; r < to.registers(); ++r) {
    Place at = place(to, r, to_type);
    auto [row, column] = source_of(at.row, at.column);
    Value* element = plus(times(row, pitch), column);
    if (at.live) element = ir_.CreateSelect(at.live, element, number(0));
    Value* pointer = shared_element(dtype, grid.offset, element);
    for (Value* value : load_vector(dtype, pointer, 1)) out.push_back(value);
  }
  return out;
}

GpuEmitter::Tile GpuEmitter::convert(const Tile& tile, const Layout& from, const Layout& to,
                                     const Type& type) {
  if (from == to) return tile;
  if (from.is_splat() || to.is_splat()) {
    return Tile(static_cast<size_t>(to.registers()), tile[0]);
  }
  if (auto held = registers_in_place(from, to)) {
    Tile out;
    for (int reg : *held) out.push_back(tile[static_cast<size_t>(reg)]);
    return out;
  }
  int pitch = exchange_pitch(type, from, to, [](int64_t element) { return element; });
  auto same = [](Value* row, Value* column) { return std::pair{row, column}; };
  return redistribute(tile, from, type, to, type, same, pitch);
}

GpuEmitter::Tile GpuEmitter::in_layout(ValueId id, const Layout& layout) {
  if (type(id).kind != Type::Kind::kTile) return tile(id);
  return convert(tile(id), layouts_[id], layout, type(id));
}

llvm::Value* GpuEmitter::shuffle_word(Value* word, int distance) {
  return ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_shfl_sync_bfly_i32, {},
                             {ir_.getInt32(~0u), word, number(distance), number(kWarp - 1)});
}

llvm::Value* GpuEmitter::shuffle_xor(Value* value, int distance) {
  llvm::Type* type = value->getType();
  unsigned width = type->getScalarSizeInBits();
  Value* bits = ir_.CreateBitCast(value, ir_.getIntNTy(width));
  if (width <= 32) {
    Value* moved = shuffle_word(ir_.CreateZExt(bits, ir_.getInt32Ty()), distance);
    return ir_.CreateBitCast(ir_.CreateTrunc(moved, ir_.getIntNTy(width)), type);
  }
  Value* low = shuffle_word(ir_.CreateTrunc(bits, ir_.getInt32Ty()), distance);
  Value* high = shuffle_word(ir_.CreateTrunc(ir_.CreateLShr(bits, 32), ir_.getInt32Ty()), distance);
  Value* wide = ir_.CreateShl(ir_.CreateZExt(high, ir_.getInt64Ty()), 32);
  wide = ir_.CreateOr(wide, ir_.CreateZExt(low, ir_.getInt64Ty()));
  return ir_.CreateBitCast(wide, type);
}

}  // namespace tenon::codegen
