// Gathers and scatters that no instruction of the processor does: one lane after the other, in a
// loop. LLVM would write out every lane, with a branch of its own where there is a mask.
#include <llvm/IR/IRBuilder.h>

#include "codegen/llvm/emit_host.h"

namespace tenon::codegen {

// x86 moves lanes of 32 and 64 bits. NEON moves none; without a mask, what LLVM writes out there is
// a load into a lane each.
bool HostEmitter::moves_by_lane(DType dtype, bool is_masked) const {
  if (target_.arch == HostArch::kAArch64) return is_masked;
  return memory_type(dtype)->getScalarSizeInBits() < 32;
}

// Memory on the stack that holds one such vector; it is free again after the operation.
llvm::Value* HostEmitter::lane_room(llvm::Type* vector) {
  llvm::AllocaInst*& room = lane_rooms_[vector];
  if (!room) {
    llvm::BasicBlock& entry = function_->getEntryBlock();
    llvm::IRBuilder<> ir(&entry, entry.getFirstInsertionPt());
    room = ir.CreateAlloca(vector);
    room->setAlignment(llvm::Align(64));
  }
  return room;
}

void HostEmitter::for_lanes(Value* count, const std::function<void(Value* lane)>& body) {
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  auto* inside = llvm::BasicBlock::Create(ir_.getContext(), "lane", function_);
  auto* exit = llvm::BasicBlock::Create(ir_.getContext(), "end_lane", function_);
  ir_.CreateCondBr(ir_.CreateICmpSGT(count, index_constant(0)), inside, exit);
  ir_.SetInsertPoint(inside);
  llvm::PHINode* lane = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  lane->addIncoming(index_constant(0), before);
  body(lane);
  Value* next = ir_.CreateNSWAdd(lane, index_constant(1));
  lane->addIncoming(next, ir_.GetInsertBlock());
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, count), inside, exit);
  ir_.SetInsertPoint(exit);
}

// How many lanes of a line there are.
llvm::Value* HostEmitter::lane_count(const Line& line, int lanes) {
  Value* count = index_constant(lanes);
  if (line.extent) count = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, line.extent, count);
  if (line.enabled) count = ir_.CreateSelect(line.enabled, count, index_constant(0));
  return count;
}

llvm::Value* HostEmitter::load_lanes(const Line& line, int lanes, Value* fill) {
  llvm::Type *element = memory_type(line.dtype), *vector = vector_of(element, lanes);
  const llvm::Align aligned(element->getScalarSizeInBits() / 8);
  Value* room = lane_room(vector);
  if (fill && (line.extent || line.enabled)) {
    Value* filled = ir_.CreateVectorSplat(static_cast<unsigned>(lanes), fill);
    ir_.CreateAlignedStore(filled, room, aligned);
  }
  for_lanes(lane_count(line, lanes), [&](Value* lane) {
    Value* from = element_pointer(line.dtype, line.base, ir_.CreateNSWMul(lane, line.stride));
    Value* loaded = ir_.CreateAlignedLoad(element, from, aligned);
    ir_.CreateAlignedStore(loaded, ir_.CreateGEP(element, room, lane), aligned);
  });
  return ir_.CreateAlignedLoad(vector, room, aligned);
}

void HostEmitter::store_lanes(const Line& line, int lanes, Value* value) {
  llvm::Type* element = memory_type(line.dtype);
  const llvm::Align aligned(element->getScalarSizeInBits() / 8);
  Value* room = lane_room(value->getType());
  ir_.CreateAlignedStore(value, room, aligned);
  for_lanes(lane_count(line, lanes), [&](Value* lane) {
    Value* loaded = ir_.CreateAlignedLoad(element, ir_.CreateGEP(element, room, lane), aligned);
    Value* to = element_pointer(line.dtype, line.base, ir_.CreateNSWMul(lane, line.stride));
    ir_.CreateAlignedStore(loaded, to, aligned);
  });
}

// Of each lane its offset and, where there is a mask, whether it takes part, in memory.
struct HostEmitter::LaneList {
  Value *offsets = nullptr, *mask = nullptr;
};

HostEmitter::LaneList HostEmitter::list_lanes(Value* offsets, Value* mask) {
  // Arrays of one, for a room of their own: the elements may be of the same type.
  const auto room = [&](Value* vector) {
    return lane_room(llvm::ArrayType::get(vector->getType(), 1));
  };
  LaneList list{room(offsets)};
  ir_.CreateAlignedStore(offsets, list.offsets, llvm::Align(8));
  if (!mask) return list;
  Value* bytes = ir_.CreateZExt(mask, mask->getType()->getWithNewType(ir_.getInt8Ty()));
  list.mask = room(bytes);
  ir_.CreateAlignedStore(bytes, list.mask, llvm::Align(1));
  return list;
}

// Where a lane's element lies, and `otherwise` for one that takes no part.
llvm::Value* HostEmitter::lane_pointer(const LaneList& list, DType dtype, Value* base, Value* lane,
                                       Value* otherwise) {
  llvm::Type *i64 = ir_.getInt64Ty(), *i8 = ir_.getInt8Ty();
  Value* offset =
      ir_.CreateAlignedLoad(i64, ir_.CreateGEP(i64, list.offsets, lane), llvm::Align(8));
  Value* pointer = element_pointer(dtype, base, offset);
  if (!list.mask) return pointer;
  Value* byte = ir_.CreateAlignedLoad(i8, ir_.CreateGEP(i8, list.mask, lane), llvm::Align(1));
  return ir_.CreateSelect(ir_.CreateICmpNE(byte, ir_.getInt8(0)), pointer, otherwise);
}

llvm::Value* HostEmitter::gather_lanes(DType dtype, Value* base, Value* offsets, Value* mask,
                                       Value* fill) {
  llvm::Type* element = memory_type(dtype);
  llvm::Type* vector = offsets->getType()->getWithNewType(element);
  const unsigned lanes = llvm::cast<llvm::FixedVectorType>(vector)->getNumElements();
  const llvm::Align aligned(element->getScalarSizeInBits() / 8);
  const LaneList list = list_lanes(offsets, mask);
  Value* room = lane_room(vector);
  if (mask) ir_.CreateAlignedStore(ir_.CreateVectorSplat(lanes, fill), room, aligned);
  for_lanes(index_constant(lanes), [&](Value* lane) {
    Value* place = ir_.CreateGEP(element, room, lane);
    Value* from = lane_pointer(list, dtype, base, lane, place);
    ir_.CreateAlignedStore(ir_.CreateAlignedLoad(element, from, aligned), place, aligned);
  });
  return ir_.CreateAlignedLoad(vector, room, aligned);
}

void HostEmitter::scatter_lanes(DType dtype, Value* base, Value* offsets, Value* mask,
                                Value* value) {
  llvm::Type* element = memory_type(dtype);
  const unsigned lanes = llvm::cast<llvm::FixedVectorType>(value->getType())->getNumElements();
  const llvm::Align aligned(element->getScalarSizeInBits() / 8);
  const LaneList list = list_lanes(offsets, mask);
  Value* room = lane_room(value->getType());
  ir_.CreateAlignedStore(value, room, aligned);
  for_lanes(index_constant(lanes), [&](Value* lane) {
    Value* place = ir_.CreateGEP(element, room, lane);
    Value* loaded = ir_.CreateAlignedLoad(element, place, aligned);
    ir_.CreateAlignedStore(loaded, lane_pointer(list, dtype, base, lane, place), aligned);
  });
}

}  // namespace tenon::codegen
