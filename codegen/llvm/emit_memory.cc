// Loads and stores. Only what an extent allows is touched.
#include <llvm/IR/IRBuilder.h>

#include <algorithm>
#include <numeric>

#include "codegen/llvm/emit_host.h"

namespace tenon::codegen {

namespace {

llvm::Align alignment(llvm::Type* element) {
  return llvm::Align(std::max(1u, element->getScalarSizeInBits() / 8));
}

}  // namespace

void HostEmitter::memory_operation(const Operation& op) {
  switch (op.op) {
    case Op::kAlloc:
      return;  // hoisted
    case Op::kLoad:
      if (!folded_loads_.contains(op.results[0])) values_[op.results[0]] = load(op);
      return;
    case Op::kStore:
      return store(op);
    case Op::kGather:
      return gather(op);
    case Op::kScatter:
      return scatter(op);
    case Op::kArrive: {
      Value* counter = element_pointer(DType::kI32, single(op.operands[0]), single(op.operands[1]));
      Value* before =
          ir_.CreateAtomicRMW(llvm::AtomicRMWInst::Add, counter, ir_.getInt32(1),
                              llvm::MaybeAlign(4), llvm::AtomicOrdering::AcquireRelease);
      values_[op.results[0]] = {ir_.CreateZExt(before, ir_.getInt64Ty())};
      return;
    }
    default: {  // kPrefetch: read, data
      DType dtype = type(op.operands[0]).dtype;
      Value* pointer = element_pointer(dtype, single(op.operands[0]), single(op.operands[1]));
      ir_.CreateIntrinsic(
          llvm::Intrinsic::prefetch, {ir_.getPtrTy()},
          {pointer, ir_.getInt32(0), ir_.getInt32(prefetch_locality()), ir_.getInt32(1)});
    }
  }
}

// 3 is into L1, 2 into L2. A Neoverse-V1 that is asked for lines of L1 8 KiB ahead reads memory at
// 21 GB/s, for lines of L2 at 48; an N1 reads fastest with lines of L1.
int HostEmitter::prefetch_locality() const {
  const bool newer_arm = target_.arch == HostArch::kAArch64 && target_.has("i8mm");
  return newer_arm ? 2 : 3;
}

llvm::Value* HostEmitter::element_pointer(DType dtype, Value* base, Value* offset) {
  if (is_constant(offset, 0)) return base;
  return ir_.CreateGEP(memory_type(dtype), base, offset);
}

HostEmitter::Access HostEmitter::access(const Operation& op, size_t first_stride, size_t rank) {
  Access out;
  out.dtype = type(op.operands[0]).dtype;
  out.base = element_pointer(out.dtype, single(op.operands[0]), single(op.operands[1]));
  for (size_t d = 0; d < rank; ++d) {
    out.strides.push_back(single(op.operands[first_stride + d]));
    ValueId extent = op.operands[first_stride + rank + d];
    out.extents.push_back(extent == kNone ? nullptr : single(extent));
  }
  return out;
}

llvm::Value* HostEmitter::row_pointer(const Access& access, int64_t row) {
  if (row == 0) return access.base;
  Value* offset = ir_.CreateNSWMul(access.strides[0], index_constant(row));
  return element_pointer(access.dtype, access.base, offset);
}

llvm::Value* HostEmitter::load_scalar(DType dtype, Value* pointer) {
  llvm::Type* element = memory_type(dtype);
  return from_memory(dtype, ir_.CreateAlignedLoad(element, pointer, alignment(element)));
}

// Lanes below `extent`, and none at all unless `enabled`; either may be null for "no bound".
llvm::Value* HostEmitter::lane_mask(Value* extent, int lanes, Value* enabled) {
  auto count = static_cast<unsigned>(lanes);
  Value* mask = nullptr;
  if (extent) {
    Value* whole = index_constant(lanes);
    Value* clamped = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, extent, whole);
    clamped = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, clamped, index_constant(0));
    std::vector<uint32_t> positions(count);
    std::iota(positions.begin(), positions.end(), 0u);
    Value* iota = llvm::ConstantDataVector::get(ir_.getContext(), positions);
    Value* limit = ir_.CreateVectorSplat(count, ir_.CreateTrunc(clamped, ir_.getInt32Ty()));
    mask = ir_.CreateICmpULT(iota, limit);
  }
  if (!enabled) return mask;
  Value* all = ir_.CreateVectorSplat(count, enabled);
  return mask ? ir_.CreateAnd(mask, all) : all;
}

llvm::Value* HostEmitter::row_enabled(Value* extent, int64_t row) {
  return extent ? ir_.CreateICmpSGT(extent, index_constant(row)) : nullptr;
}

llvm::Value* HostEmitter::pointer_vector(DType dtype, Value* base, Value* offsets) {
  return ir_.CreateGEP(memory_type(dtype), base, offsets);
}

HostEmitter::Line HostEmitter::line_of(const Access& access, size_t dimension, Value* base,
                                       Value* extent, Value* enabled) {
  return {access.dtype, base, access.strides[dimension], extent, enabled};
}

HostEmitter::Line HostEmitter::advanced(const Line& line, int lanes) {
  Line next = line;
  Value* offset = ir_.CreateNSWMul(line.stride, index_constant(lanes));
  next.base = element_pointer(line.dtype, line.base, offset);
  if (line.extent) next.extent = ir_.CreateNSWSub(line.extent, index_constant(lanes));
  return next;
}

HostEmitter::Tile HostEmitter::load_line(Line line, int lanes, Value* fill) {
  Tile out;
  for (int width : piece_widths(lanes)) {
    if (!out.empty()) {
      auto* last = llvm::cast<llvm::FixedVectorType>(out.back()->getType());
      line = advanced(line, static_cast<int>(last->getNumElements()));
    }
    out.push_back(load_piece(line, width, fill));
  }
  return out;
}

void HostEmitter::store_line(Line line, std::span<Value* const> pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) {
      auto* last = llvm::cast<llvm::FixedVectorType>(pieces[i - 1]->getType());
      line = advanced(line, static_cast<int>(last->getNumElements()));
    }
    store_piece(line, pieces[i]);
  }
}

llvm::Value* HostEmitter::load_piece(const Line& line, int lanes, Value* fill) {
  llvm::Type* element = memory_type(line.dtype);
  llvm::Type* vector = vector_of(element, lanes);
  auto count = static_cast<unsigned>(lanes);
  Value* mask = lane_mask(line.extent, lanes, line.enabled);
  Value* loaded = nullptr;
  if (is_constant(line.stride, 1)) {
    if (!mask) {
      loaded = ir_.CreateAlignedLoad(vector, line.base, alignment(element));
    } else {
      loaded = ir_.CreateMaskedLoad(vector, line.base, alignment(element), mask,
                                    ir_.CreateVectorSplat(count, fill));
    }
  } else if (is_constant(line.stride, 0) && !mask) {
    loaded =
        ir_.CreateVectorSplat(count, ir_.CreateAlignedLoad(element, line.base, alignment(element)));
  } else if (lanes > 1 && moves_by_lane(line.dtype, mask != nullptr)) {
    loaded = load_lanes(line, lanes, fill);
  } else {
    Value* pointers = pointer_vector(line.dtype, line.base, strided_offsets(line.stride, lanes));
    loaded = ir_.CreateMaskedGather(vector, pointers, alignment(element), mask,
                                    fill ? ir_.CreateVectorSplat(count, fill) : nullptr);
  }
  return from_memory(line.dtype, loaded);
}

void HostEmitter::store_piece(const Line& line, Value* value) {
  llvm::Type* element = memory_type(line.dtype);
  int lanes =
      static_cast<int>(llvm::cast<llvm::FixedVectorType>(value->getType())->getNumElements());
  Value* mask = lane_mask(line.extent, lanes, line.enabled);
  value = to_memory(line.dtype, value);
  const bool is_strided = !is_constant(line.stride, 1);
  if (is_strided && lanes > 1 && moves_by_lane(line.dtype, mask != nullptr)) {
    store_lanes(line, lanes, value);
  } else if (is_strided) {
    Value* pointers = pointer_vector(line.dtype, line.base, strided_offsets(line.stride, lanes));
    ir_.CreateMaskedScatter(value, pointers, alignment(element), mask);
  } else if (mask) {
    ir_.CreateMaskedStore(value, line.base, alignment(element), mask);
  } else {
    ir_.CreateAlignedStore(value, line.base, alignment(element));
  }
}

llvm::Value* HostEmitter::strided_offsets(Value* stride, int lanes) {
  std::vector<uint64_t> positions(static_cast<size_t>(lanes));
  std::iota(positions.begin(), positions.end(), uint64_t{0});
  Value* iota = llvm::ConstantDataVector::get(ir_.getContext(), positions);
  return ir_.CreateMul(iota, ir_.CreateVectorSplat(static_cast<unsigned>(lanes), stride));
}

// The lines of a tile in memory, or its rows where packed rows do not lie in memory as one line.
std::vector<HostEmitter::Line> HostEmitter::lines_of(const Access& access,
                                                     const std::vector<int>& shape) {
  if (shape.size() == 1) return {line_of(access, 0, access.base, access.extents[0], nullptr)};
  if (shape[1] == 1) {
    Value* enabled = row_enabled(access.extents[1], 0);
    return {line_of(access, 0, access.base, access.extents[0], enabled)};
  }
  bool contiguous = is_constant(access.strides[1], 1) && is_constant(access.strides[0], shape[1]);
  if (shape[1] <= kPackedRow && contiguous && !access.extents[1]) {
    Value* extent = access.extents[0];
    if (extent) extent = ir_.CreateNSWMul(extent, index_constant(shape[1]));
    return {line_of(access, 1, access.base, extent, nullptr)};
  }
  std::vector<Line> out;
  for (int row = 0; row < shape[0]; ++row) {
    out.push_back(line_of(access, 1, row_pointer(access, row), access.extents[1],
                          row_enabled(access.extents[0], row)));
  }
  return out;
}

HostEmitter::Tile HostEmitter::load(const Operation& op) {
  const Type& result = type(op.results[0]);
  size_t rank = result.shape.size();
  Access from = access(op, 2, rank);
  if (rank == 0) return {load_scalar(from.dtype, from.base)};
  Value* fill = constant_element(from.dtype, op.number, static_cast<int64_t>(op.number));
  fill = to_memory(from.dtype, fill);
  std::vector<Line> lines = lines_of(from, result.shape);
  int lanes = static_cast<int>(result.elements() / static_cast<int64_t>(lines.size()));
  std::vector<Tile> out;
  for (const Line& line : lines) out.push_back(load_line(line, lanes, fill));
  return lines.size() == 1 ? out[0] : from_row_pieces(std::move(out), result);
}

void HostEmitter::store(const Operation& op) {
  const Type& value = type(op.operands[2]);
  const Tile& x = tile(op.operands[2]);
  Access to = access(op, 3, value.shape.size());
  if (value.shape.empty()) {
    llvm::Type* element = memory_type(to.dtype);
    ir_.CreateAlignedStore(to_memory(to.dtype, x[0]), to.base, alignment(element));
    return;
  }
  std::vector<Line> lines = lines_of(to, value.shape);
  if (lines.size() == 1) return store_line(lines[0], x);
  std::vector<Tile> in = row_pieces(x, value);
  for (size_t row = 0; row < lines.size(); ++row) store_line(lines[row], from_lines(in[row]));
}

void HostEmitter::gather(const Operation& op) {
  const Type &indices = type(op.operands[2]), &result = type(op.results[0]);
  DType dtype = result.dtype;
  llvm::Type* element = memory_type(dtype);
  Value* base = element_pointer(dtype, single(op.operands[0]), single(op.operands[1]));
  Value* fill = constant_element(dtype, op.number, static_cast<int64_t>(op.number));
  fill = to_memory(dtype, fill);
  ValueId mask_id = op.operands[3];
  Tile out;
  for (size_t p = 0; p < tile(op.operands[2]).size(); ++p) {
    Value* offsets = cast(indices.dtype, DType::kI64, tile(op.operands[2])[p]);
    bool scalar = !offsets->getType()->isVectorTy();
    if (scalar) offsets = ir_.CreateVectorSplat(1, offsets);
    Value* mask = mask_id == kNone ? nullptr : tile(mask_id)[p];
    if (mask && scalar) mask = ir_.CreateVectorSplat(1, mask);
    auto* row = offsets->getType()->getWithNewType(element);
    unsigned lanes = llvm::cast<llvm::FixedVectorType>(row)->getNumElements();
    if (lanes > 1 && moves_by_lane(dtype, mask != nullptr)) {
      out.push_back(from_memory(dtype, gather_lanes(dtype, base, offsets, mask, fill)));
      continue;
    }
    Value* loaded =
        ir_.CreateMaskedGather(row, pointer_vector(dtype, base, offsets), alignment(element), mask,
                               ir_.CreateVectorSplat(lanes, fill));
    out.push_back(from_memory(dtype, scalar ? lane(loaded, 0) : loaded));
  }
  values_[op.results[0]] = std::move(out);
}

void HostEmitter::scatter(const Operation& op) {
  const Type& indices = type(op.operands[2]);
  DType dtype = type(op.operands[3]).dtype;
  llvm::Type* element = memory_type(dtype);
  Value* base = element_pointer(dtype, single(op.operands[0]), single(op.operands[1]));
  ValueId mask_id = op.operands[4];
  auto as_vector = [&](Value* v) {
    return v->getType()->isVectorTy() ? v : ir_.CreateVectorSplat(1, v);
  };
  for (size_t p = 0; p < tile(op.operands[2]).size(); ++p) {
    Value* offsets = as_vector(cast(indices.dtype, DType::kI64, tile(op.operands[2])[p]));
    Value* mask = mask_id == kNone ? nullptr : as_vector(tile(mask_id)[p]);
    Value* value = to_memory(dtype, as_vector(tile(op.operands[3])[p]));
    if (moves_by_lane(dtype, mask != nullptr)) {
      scatter_lanes(dtype, base, offsets, mask, value);
      continue;
    }
    ir_.CreateMaskedScatter(value, pointer_vector(dtype, base, offsets), alignment(element), mask);
  }
}

}  // namespace tenon::codegen
