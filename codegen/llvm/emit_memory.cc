// Loads and stores. Only what an extent allows is touched.
#include <llvm/IR/IRBuilder.h>

#include <numeric>

#include "codegen/llvm/emit_host.h"

namespace tenon::codegen {

namespace {

llvm::Align alignment(llvm::Type* element) {
  return llvm::Align(std::max(1u, element->getScalarSizeInBits() / 8));
}

}  // namespace

bool HostEmitter::is_constant(Value* value, int64_t expected) const {
  auto* known = llvm::dyn_cast<llvm::ConstantInt>(value);
  return known && known->getSExtValue() == expected;
}

void HostEmitter::memory_operation(const Operation& op) {
  switch (op.op) {
    case Op::kAlloc: return;  // hoisted
    case Op::kLoad:
      if (!folded_loads_.contains(op.results[0])) values_[op.results[0]] = load(op);
      return;
    case Op::kStore: return store(op);
    case Op::kGather: return gather(op);
    case Op::kScatter: return scatter(op);
    default: {  // kPrefetch: read, keep in all levels, data
      DType dtype = type(op.operands[0]).dtype;
      Value* pointer = element_pointer(dtype, single(op.operands[0]), single(op.operands[1]));
      ir_.CreateIntrinsic(llvm::Intrinsic::prefetch, {ir_.getPtrTy()},
                          {pointer, ir_.getInt32(0), ir_.getInt32(3), ir_.getInt32(1)});
    }
  }
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

llvm::Value* HostEmitter::from_memory(DType dtype, Value* loaded) {
  if (dtype != DType::kBool) return loaded;
  return ir_.CreateICmpNE(loaded, llvm::Constant::getNullValue(loaded->getType()));
}

llvm::Value* HostEmitter::to_memory(DType dtype, Value* value) {
  if (dtype != DType::kBool) return value;
  return ir_.CreateZExt(value, value->getType()->getWithNewType(ir_.getInt8Ty()));
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

llvm::Value* HostEmitter::load_row(const Access& access, Value* base, Value* stride, Value* extent,
                                   Value* enabled, int lanes, Value* fill) {
  llvm::Type* element = memory_type(access.dtype);
  llvm::Type* row = vector_of(element, lanes);
  auto count = static_cast<unsigned>(lanes);
  Value* mask = lane_mask(extent, lanes, enabled);
  Value* loaded = nullptr;
  if (is_constant(stride, 1)) {
    if (!mask) {
      loaded = ir_.CreateAlignedLoad(row, base, alignment(element));
    } else {
      loaded = ir_.CreateMaskedLoad(row, base, alignment(element), mask,
                                    ir_.CreateVectorSplat(count, fill));
    }
  } else if (is_constant(stride, 0) && !mask) {
    loaded = ir_.CreateVectorSplat(
        count, ir_.CreateAlignedLoad(element, base, alignment(element)));
  } else {
    std::vector<uint64_t> positions(count);
    std::iota(positions.begin(), positions.end(), uint64_t{0});
    Value* iota = llvm::ConstantDataVector::get(ir_.getContext(), positions);
    Value* offsets = ir_.CreateMul(iota, ir_.CreateVectorSplat(count, stride));
    Value* pointers = pointer_vector(access.dtype, base, offsets);
    loaded = ir_.CreateMaskedGather(row, pointers, alignment(element), mask,
                                    ir_.CreateVectorSplat(count, fill));
  }
  return from_memory(access.dtype, loaded);
}

void HostEmitter::store_row(const Access& access, Value* base, Value* stride, Value* extent,
                            Value* enabled, Value* value) {
  llvm::Type* element = memory_type(access.dtype);
  auto count = llvm::cast<llvm::FixedVectorType>(value->getType())->getNumElements();
  Value* mask = lane_mask(extent, static_cast<int>(count), enabled);
  value = to_memory(access.dtype, value);
  if (!is_constant(stride, 1)) {
    std::vector<uint64_t> positions(count);
    std::iota(positions.begin(), positions.end(), uint64_t{0});
    Value* iota = llvm::ConstantDataVector::get(ir_.getContext(), positions);
    Value* offsets = ir_.CreateMul(iota, ir_.CreateVectorSplat(count, stride));
    ir_.CreateMaskedScatter(value, pointer_vector(access.dtype, base, offsets),
                            alignment(element), mask);
  } else if (mask) {
    ir_.CreateMaskedStore(value, base, alignment(element), mask);
  } else {
    ir_.CreateAlignedStore(value, base, alignment(element));
  }
}

// Rows follow each other without a gap.
bool HostEmitter::is_contiguous(const Access& access, const std::vector<int>& shape) const {
  return is_constant(access.strides[1], 1) && is_constant(access.strides[0], shape[1]);
}

HostEmitter::Tile HostEmitter::load(const Operation& op) {
  const Type& result = type(op.results[0]);
  size_t rank = result.shape.size();
  Access from = access(op, 2, rank);
  if (rank == 0) return {load_scalar(from.dtype, from.base)};
  Value* fill = constant_element(from.dtype, op.number, static_cast<int64_t>(op.number));
  fill = to_memory(from.dtype, fill);
  if (rank == 1) {
    return {load_row(from, from.base, from.strides[0], from.extents[0], nullptr, result.shape[0],
                     fill)};
  }
  int m = result.shape[0], n = result.shape[1];
  // Packed rows in one go, where they lie in memory as one vector.
  if (n == 1) {
    return {load_row(from, from.base, from.strides[0], from.extents[0],
                     row_enabled(from.extents[1], 0), m, fill)};
  }
  if (n <= kPackedRow && is_contiguous(from, result.shape) && !from.extents[1]) {
    Value* extent = from.extents[0];
    if (extent) extent = ir_.CreateNSWMul(extent, index_constant(n));
    return {load_row(from, from.base, from.strides[1], extent, nullptr, m * n, fill)};
  }
  std::vector<Value*> out;
  for (int row = 0; row < m; ++row) {
    out.push_back(load_row(from, row_pointer(from, row), from.strides[1], from.extents[1],
                           row_enabled(from.extents[0], row), n, fill));
  }
  return from_rows(std::move(out), result);
}

void HostEmitter::store(const Operation& op) {
  const Type& value = type(op.operands[2]);
  const Tile& x = tile(op.operands[2]);
  size_t rank = value.shape.size();
  Access to = access(op, 3, rank);
  if (rank == 0) {
    llvm::Type* element = memory_type(to.dtype);
    ir_.CreateAlignedStore(to_memory(to.dtype, x[0]), to.base, alignment(element));
    return;
  }
  if (rank == 1) {
    return store_row(to, to.base, to.strides[0], to.extents[0], nullptr, x[0]);
  }
  int m = value.shape[0], n = value.shape[1];
  if (n == 1) {
    return store_row(to, to.base, to.strides[0], to.extents[0], row_enabled(to.extents[1], 0),
                     x[0]);
  }
  if (n <= kPackedRow && is_contiguous(to, value.shape) && !to.extents[1]) {
    Value* extent = to.extents[0];
    if (extent) extent = ir_.CreateNSWMul(extent, index_constant(n));
    return store_row(to, to.base, to.strides[1], extent, nullptr, x[0]);
  }
  std::vector<Value*> in = rows(x, value);
  for (int row = 0; row < m; ++row) {
    store_row(to, row_pointer(to, row), to.strides[1], to.extents[1],
              row_enabled(to.extents[0], row), in[static_cast<size_t>(row)]);
  }
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
    ir_.CreateMaskedScatter(value, pointer_vector(dtype, base, offsets), alignment(element), mask);
  }
}

}  // namespace tenon::codegen
