#include "codegen/llvm/emit_host.h"

#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include "base/error.h"

namespace tenon::codegen {

HostEmitter::HostEmitter(const Kernel& kernel, const HostTarget& target, llvm::Module& module,
                         llvm::IRBuilderBase& ir)
    : kernel_(kernel),
      target_(target),
      module_(module),
      ir_(ir),
      values_(kernel.types.size()),
      uses_(kernel.types.size()) {}

// void kernel(ptr buffers, ptr indices, i64 first, i64 last): the body inside a loop over tasks.
llvm::Function* HostEmitter::run() {
  llvm::Type* pointer = ir_.getPtrTy();
  llvm::Type* i64 = ir_.getInt64Ty();
  auto* signature = llvm::FunctionType::get(ir_.getVoidTy(), {pointer, pointer, i64, i64}, false);
  function_ =
      llvm::Function::Create(signature, llvm::Function::ExternalLinkage, kernel_.name, module_);
  auto& context = module_.getContext();
  auto* entry = llvm::BasicBlock::Create(context, "entry", function_);
  auto* body = llvm::BasicBlock::Create(context, "task", function_);
  auto* exit = llvm::BasicBlock::Create(context, "exit", function_);

  ir_.SetInsertPoint(entry);
  int buffers = 0, indices = 0;
  for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
    bool is_buffer = kernel_.parameters[i].type.kind == Type::Kind::kBuffer;
    llvm::Type* slot = is_buffer ? pointer : i64;
    Value* address = ir_.CreateConstInBoundsGEP1_64(slot, function_->getArg(is_buffer ? 0 : 1),
                                                    is_buffer ? buffers++ : indices++);
    values_[i] = {ir_.CreateLoad(slot, address, kernel_.parameters[i].name)};
  }
  hoist_allocs(kernel_.body);
  survey(kernel_.body);
  Value *first = function_->getArg(2), *last = function_->getArg(3);
  ir_.CreateCondBr(ir_.CreateICmpSLT(first, last), body, exit);

  ir_.SetInsertPoint(body);
  llvm::PHINode* task = ir_.CreatePHI(i64, 2, "task");
  task->addIncoming(first, entry);
  task_ = task;
  region(kernel_.body);
  Value* next = ir_.CreateNSWAdd(task, ir_.getInt64(1));
  task->addIncoming(next, ir_.GetInsertBlock());
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, last), body, exit);

  ir_.SetInsertPoint(exit);
  ir_.CreateRetVoid();
  return function_;
}

// Counts uses and notes index constants before anything is emitted.
void HostEmitter::survey(const Region& region) {
  for (const Operation& op : region.operations) {
    if (op.op == Op::kIndexConstant) index_values_[op.results[0]] = op.integer;
    for (ValueId id : op.operands) {
      if (id != kNone) ++uses_[id];
    }
    for (const Region& inner : op.regions) survey(inner);
  }
}

// Scratch lives in the entry block: one stack slot each, however often the loop around it runs.
void HostEmitter::hoist_allocs(const Region& region) {
  for (const Operation& op : region.operations) {
    if (op.op == Op::kAlloc) {
      llvm::AllocaInst* slot = ir_.CreateAlloca(memory_type(type(op.results[0]).dtype),
                                                ir_.getInt64(static_cast<uint64_t>(op.integer)));
      slot->setAlignment(llvm::Align(64));
      values_[op.results[0]] = {slot};
    }
    for (const Region& inner : op.regions) hoist_allocs(inner);
  }
}

void HostEmitter::region(const Region& region) {
  plan_dot_operands(region);
  for (const Operation& op : region.operations) operation(op);
}

void HostEmitter::operation(const Operation& op) {
  switch (op.op) {
    case Op::kTask:
    case Op::kIndexConstant:
    case Op::kIndexAdd:
    case Op::kIndexSub:
    case Op::kIndexMul:
    case Op::kIndexDiv:
    case Op::kIndexRem:
    case Op::kIndexMin:
    case Op::kIndexMax:
    case Op::kIndexLess:
    case Op::kIndexEqual:
    case Op::kIndexSelect:
    case Op::kIndexFromTile:
      return index_operation(op);
    case Op::kConstant:
    case Op::kSplat:
    case Op::kFromIndex:
    case Op::kIota:
      return make_tile(op);
    case Op::kUnary:
    case Op::kBinary:
    case Op::kTernary:
    case Op::kCompare:
    case Op::kSelect:
    case Op::kCast:
    case Op::kBitcast:
      return elementwise(op);
    case Op::kBroadcast:
    case Op::kReshape:
    case Op::kTranspose:
    case Op::kSlice:
    case Op::kConcat:
    case Op::kReduce:
      return shape_operation(op);
    case Op::kLookup:
      return lookup(op);
    case Op::kDot:
      return dot(op);
    case Op::kDotI8:
      return dot_i8(op);
    case Op::kAlloc:
    case Op::kLoad:
    case Op::kStore:
    case Op::kGather:
    case Op::kScatter:
    case Op::kPrefetch:
      return memory_operation(op);
    case Op::kFor:
      return for_loop(op);
    case Op::kIf:
      return if_else(op);
    case Op::kYield:
      return;  // read by the owner of the region
  }
}

void HostEmitter::index_operation(const Operation& op) {
  auto at = [&](size_t i) { return single(op.operands[i]); };
  auto compute = [&]() -> Value* {
    switch (op.op) {
      case Op::kTask:
        return task_;
      case Op::kIndexConstant:
        return index_constant(op.integer);
      case Op::kIndexAdd:
        return ir_.CreateNSWAdd(at(0), at(1));
      case Op::kIndexSub:
        return ir_.CreateNSWSub(at(0), at(1));
      case Op::kIndexMul:
        return ir_.CreateNSWMul(at(0), at(1));
      // Both are known to be non-negative, and unsigned division by a constant is cheaper.
      case Op::kIndexDiv:
        return ir_.CreateUDiv(at(0), at(1));
      case Op::kIndexRem:
        return ir_.CreateURem(at(0), at(1));
      case Op::kIndexMin:
        return ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, at(0), at(1));
      case Op::kIndexMax:
        return ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, at(0), at(1));
      case Op::kIndexLess:
        return ir_.CreateICmpSLT(at(0), at(1));
      case Op::kIndexEqual:
        return ir_.CreateICmpEQ(at(0), at(1));
      case Op::kIndexSelect:
        return ir_.CreateSelect(at(0), at(1), at(2));
      default:
        return cast(type(op.operands[0]).dtype, DType::kI64, at(0));  // kIndexFromTile
    }
  };
  values_[op.results[0]] = {compute()};
}

std::vector<ValueId> HostEmitter::yielded(const Region& region) const {
  return region.operations.back().operands;
}

// Rotated: a guard, then a body that ends in its own test, so that nothing has to be rearranged
// before loop-invariant code can move out.
void HostEmitter::for_loop(const Operation& op) {
  const Region& inside = op.regions[0];
  auto& context = module_.getContext();
  Value *lo = single(op.operands[0]), *hi = single(op.operands[1]), *step = single(op.operands[2]);
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  auto* body = llvm::BasicBlock::Create(context, "for", function_);
  auto* exit = llvm::BasicBlock::Create(context, "end_for", function_);
  ir_.CreateCondBr(ir_.CreateICmpSLT(lo, hi), body, exit);

  ir_.SetInsertPoint(body);
  llvm::PHINode* counter = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  counter->addIncoming(lo, before);
  values_[inside.arguments[0]] = {counter};
  std::vector<llvm::PHINode*> carried;
  for (size_t i = 0; i < op.results.size(); ++i) {
    Tile& argument = values_[inside.arguments[1 + i]];
    argument.clear();
    for (Value* initial : tile(op.operands[3 + i])) {
      carried.push_back(ir_.CreatePHI(initial->getType(), 2));
      carried.back()->addIncoming(initial, before);
      argument.push_back(carried.back());
    }
  }
  region(inside);
  Value* next = ir_.CreateNSWAdd(counter, step);
  llvm::BasicBlock* latch = ir_.GetInsertBlock();
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, hi), body, exit);
  counter->addIncoming(next, latch);

  ir_.SetInsertPoint(exit);
  std::vector<ValueId> yields = yielded(inside);
  size_t piece = 0;
  for (size_t i = 0; i < op.results.size(); ++i) {
    Tile merged;
    for (size_t p = 0; p < tile(yields[i]).size(); ++p, ++piece) {
      Value *initial = tile(op.operands[3 + i])[p], *last = tile(yields[i])[p];
      carried[piece]->addIncoming(last, latch);
      llvm::PHINode* out = ir_.CreatePHI(initial->getType(), 2);
      out->addIncoming(initial, before);
      out->addIncoming(last, latch);
      merged.push_back(out);
    }
    values_[op.results[i]] = std::move(merged);
  }
}

void HostEmitter::if_else(const Operation& op) {
  auto& context = module_.getContext();
  llvm::BasicBlock* starts[2];
  llvm::BasicBlock* ends[2];
  for (auto& start : starts) start = llvm::BasicBlock::Create(context, "if", function_);
  auto* exit = llvm::BasicBlock::Create(context, "end_if", function_);
  ir_.CreateCondBr(single(op.operands[0]), starts[0], starts[1]);
  for (int side = 0; side < 2; ++side) {
    ir_.SetInsertPoint(starts[side]);
    region(op.regions[side]);
    ends[side] = ir_.GetInsertBlock();
    ir_.CreateBr(exit);
  }
  ir_.SetInsertPoint(exit);
  std::vector<ValueId> yields[2] = {yielded(op.regions[0]), yielded(op.regions[1])};
  for (size_t i = 0; i < op.results.size(); ++i) {
    Tile merged;
    for (size_t p = 0; p < tile(yields[0][i]).size(); ++p) {
      llvm::PHINode* out = ir_.CreatePHI(tile(yields[0][i])[p]->getType(), 2);
      for (int side = 0; side < 2; ++side) out->addIncoming(tile(yields[side][i])[p], ends[side]);
      merged.push_back(out);
    }
    values_[op.results[i]] = std::move(merged);
  }
}

}  // namespace tenon::codegen
