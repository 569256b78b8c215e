// Control flow and indices, the same on every target.
#include "codegen/llvm/emit_kernel.h"

#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include "base/error.h"
#include "codegen/tile/op_info.h"

namespace tenon::codegen {

KernelEmitter::KernelEmitter(const Kernel& kernel, llvm::Module& module, llvm::IRBuilderBase& ir)
    : kernel_(kernel), module_(module), ir_(ir), values_(kernel.types.size()) {}

void KernelEmitter::region(const Region& region) {
  before_region(region);
  for (const Operation& op : region.operations) operation(op);
  after_region(region);
}

void KernelEmitter::operation(const Operation& op) {
  if (!wanted(op)) return;
  switch (info(op.op).group) {
    case OpGroup::kIndex:
      return index_operation(op);
    case OpGroup::kMake:
      return make_tile(op);
    case OpGroup::kElementwise:
      return elementwise(op);
    case OpGroup::kShape:
      return shape_operation(op);
    case OpGroup::kProduct:
      return product(op);
    case OpGroup::kMemory:
      return op.op == Op::kTileDot ? tile_dot(op) : memory_operation(op);
    case OpGroup::kRing:
      return pipeline_operation(op);
    case OpGroup::kControl:
      return control_operation(op);
  }
}

void KernelEmitter::product(const Operation& op) {
  switch (op.op) {
    case Op::kLookup:
      return lookup(op);
    case Op::kDot:
      return dot(op);
    default:
      return dot_i8(op);
  }
}

void KernelEmitter::control_operation(const Operation& op) {
  switch (op.op) {
    case Op::kPipeline:
      return pipeline_operation(op);
    case Op::kFor:
      return for_loop(op);
    case Op::kIf:
      return if_else(op);
    default:  // kYield: read by the owner of the region
      return;
  }
}

void KernelEmitter::pipeline_operation(const Operation& op) {
  throw InternalError(fmt::format("kernel @{}: this target has no code for {}; see interpret.h",
                                  kernel_.name, name(op.op)));
}

void KernelEmitter::tile_dot(const Operation& op) { pipeline_operation(op); }

void KernelEmitter::index_operation(const Operation& op) {
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
      case Op::kIndexDiv:
        return quotient(at(0), at(1));
      case Op::kIndexRem:
        return remainder(at(0), at(1));
      case Op::kIndexMin:
        return extremum_of_indices(/*smallest=*/true, at(0), at(1));
      case Op::kIndexMax:
        return extremum_of_indices(/*smallest=*/false, at(0), at(1));
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

// LLVM's builder folds arithmetic of constants as it goes, but not this.
llvm::Value* KernelEmitter::extremum_of_indices(bool smallest, Value* a, Value* b) {
  const auto *first = llvm::dyn_cast<llvm::ConstantInt>(a),
             *second = llvm::dyn_cast<llvm::ConstantInt>(b);
  if (first && second) {
    return (first->getSExtValue() < second->getSExtValue()) == smallest ? a : b;
  }
  return ir_.CreateBinaryIntrinsic(smallest ? llvm::Intrinsic::smin : llvm::Intrinsic::smax, a, b);
}

// Unsigned: division by a constant is cheaper.
llvm::Value* KernelEmitter::quotient(Value* a, Value* b) { return ir_.CreateUDiv(a, b); }

llvm::Value* KernelEmitter::remainder(Value* a, Value* b) { return ir_.CreateURem(a, b); }

std::vector<ValueId> KernelEmitter::yielded(const Region& region) const {
  return region.operations.back().operands;
}

// Rotated: a guard, then a body that ends in its own test, so that nothing has to be rearranged
// before loop-invariant code can move out.
void KernelEmitter::for_loop(const Operation& op) {
  const Region& inside = op.regions[0];
  auto& context = module_.getContext();
  Value *lo = single(op.operands[0]), *hi = single(op.operands[1]), *step = single(op.operands[2]);
  std::vector<Tile> initials;
  for (size_t i = 0; i < op.results.size(); ++i) {
    initials.push_back(carried(op.operands[3 + i], op.results[i]));
  }
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  auto* body = llvm::BasicBlock::Create(context, "for", function_);
  auto* exit = llvm::BasicBlock::Create(context, "end_for", function_);
  ir_.CreateCondBr(ir_.CreateICmpSLT(lo, hi), body, exit);

  ir_.SetInsertPoint(body);
  llvm::PHINode* counter = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  counter->addIncoming(lo, before);
  values_[inside.arguments[0]] = {counter};
  std::vector<llvm::PHINode*> phis;
  for (size_t i = 0; i < op.results.size(); ++i) {
    Tile& argument = values_[inside.arguments[1 + i]];
    argument.clear();
    for (Value* initial : initials[i]) {
      phis.push_back(ir_.CreatePHI(initial->getType(), 2));
      phis.back()->addIncoming(initial, before);
      argument.push_back(phis.back());
    }
  }
  enter_block();
  region(inside);
  std::vector<ValueId> yields = yielded(inside);
  std::vector<Tile> lasts;
  for (size_t i = 0; i < op.results.size(); ++i) lasts.push_back(carried(yields[i], op.results[i]));
  Value* next = ir_.CreateNSWAdd(counter, step);
  llvm::BasicBlock* latch = ir_.GetInsertBlock();
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, hi), body, exit);
  counter->addIncoming(next, latch);

  ir_.SetInsertPoint(exit);
  size_t piece = 0;
  for (size_t i = 0; i < op.results.size(); ++i) {
    Tile merged;
    for (size_t p = 0; p < lasts[i].size(); ++p, ++piece) {
      Value *initial = initials[i][p], *last = lasts[i][p];
      phis[piece]->addIncoming(last, latch);
      llvm::PHINode* out = ir_.CreatePHI(initial->getType(), 2);
      out->addIncoming(initial, before);
      out->addIncoming(last, latch);
      merged.push_back(out);
    }
    values_[op.results[i]] = std::move(merged);
  }
  enter_block();
}

void KernelEmitter::if_else(const Operation& op) {
  auto& context = module_.getContext();
  llvm::BasicBlock* starts[2];
  llvm::BasicBlock* ends[2];
  for (auto& start : starts) start = llvm::BasicBlock::Create(context, "if", function_);
  auto* exit = llvm::BasicBlock::Create(context, "end_if", function_);
  ir_.CreateCondBr(single(op.operands[0]), starts[0], starts[1]);
  std::vector<Tile> sides[2];
  for (int side = 0; side < 2; ++side) {
    ir_.SetInsertPoint(starts[side]);
    enter_block();
    region(op.regions[side]);
    std::vector<ValueId> yields = yielded(op.regions[side]);
    for (size_t i = 0; i < op.results.size(); ++i) {
      sides[side].push_back(carried(yields[i], op.results[i]));
    }
    ends[side] = ir_.GetInsertBlock();
    ir_.CreateBr(exit);
  }
  ir_.SetInsertPoint(exit);
  for (size_t i = 0; i < op.results.size(); ++i) {
    Tile merged;
    for (size_t p = 0; p < sides[0][i].size(); ++p) {
      llvm::PHINode* out = ir_.CreatePHI(sides[0][i][p]->getType(), 2);
      for (int side = 0; side < 2; ++side) out->addIncoming(sides[side][i][p], ends[side]);
      merged.push_back(out);
    }
    values_[op.results[i]] = std::move(merged);
  }
  enter_block();
}

}  // namespace tenon::codegen
