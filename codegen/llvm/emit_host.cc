#include "codegen/llvm/emit_host.h"

#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include "base/error.h"

namespace tenon::codegen {

HostEmitter::HostEmitter(const Kernel& kernel, const HostTarget& target, llvm::Module& module,
                         llvm::IRBuilderBase& ir, const LoopFunctions& loops)
    : KernelEmitter(kernel, module, ir),
      target_(target),
      loops_(loops),
      uses_(kernel.types.size()) {}

llvm::Function* HostEmitter::run_as_loop() {
  std::vector<llvm::Type*> types;
  for (const Parameter& parameter : kernel_.parameters) {
    const bool is_buffer = parameter.type.kind == Type::Kind::kBuffer;
    types.push_back(is_buffer ? static_cast<llvm::Type*>(ir_.getPtrTy()) : ir_.getInt64Ty());
  }
  function_ = llvm::Function::Create(llvm::FunctionType::get(ir_.getVoidTy(), types, false),
                                     llvm::Function::InternalLinkage, kernel_.name, module_);
  for (size_t i = 0; i < types.size(); ++i) {
    values_[i] = {function_->getArg(static_cast<unsigned>(i))};
  }
  ir_.SetInsertPoint(llvm::BasicBlock::Create(module_.getContext(), "entry", function_));
  survey(kernel_.body);
  region(kernel_.body);
  ir_.CreateRetVoid();
  return function_;
}

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
  if (uses_tiles_) configure_tiles();
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
  if (uses_tiles_) release_tiles();
  ir_.CreateRetVoid();
  return function_;
}

// Counts uses and notes index constants before anything is emitted.
void HostEmitter::survey(const Region& region) {
  for (const Operation& op : region.operations) {
    if (op.op == Op::kIndexConstant) index_values_[op.results[0]] = op.integer;
    uses_tiles_ |= op.op == Op::kTileDot && target_.has("amx-bf16");
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

// What is known to run once or never needs no branches, and what never runs no code: shapes that a
// kernel knows leave many such loops, and LLVM would take them through half of its passes.
void HostEmitter::control_operation(const Operation& op) {
  const auto number = [&](size_t i) {
    return llvm::dyn_cast<llvm::ConstantInt>(single(op.operands[i]));
  };
  if (op.op == Op::kIf) {
    if (const auto* condition = number(0)) return known_side(op, condition->isOne());
  } else if (op.op == Op::kFor) {
    const auto *lo = number(0), *hi = number(1), *step = number(2);
    if (lo && hi) {
      const int64_t count = hi->getSExtValue() - lo->getSExtValue();
      if (count <= 0) return loop_at_most_once(op, /*runs=*/false);
    }
    if (const auto loop = loops_.find(&op); loop != loops_.end()) return call(loop->second);
    if (lo && hi) {
      const int64_t count = hi->getSExtValue() - lo->getSExtValue();
      if (step && step->getSExtValue() >= count) return loop_at_most_once(op, /*runs=*/true);
    }
  }
  KernelEmitter::control_operation(op);
}

void HostEmitter::call(const LoopFunction& loop) {
  std::vector<Value*> arguments;
  for (const ValueId id : loop.arguments) arguments.push_back(single(id));
  ir_.CreateCall(loop.function, arguments);
}

void HostEmitter::loop_at_most_once(const Operation& op, bool runs) {
  const Region& inside = op.regions[0];
  std::vector<Tile> carried_out;
  for (size_t i = 0; i < op.results.size(); ++i) {
    carried_out.push_back(carried(op.operands[3 + i], op.results[i]));
  }
  if (runs) {
    values_[inside.arguments[0]] = {single(op.operands[0])};
    for (size_t i = 0; i < op.results.size(); ++i) {
      values_[inside.arguments[1 + i]] = carried_out[i];
    }
    region(inside);
    const std::vector<ValueId> yields = yielded(inside);
    for (size_t i = 0; i < op.results.size(); ++i) {
      carried_out[i] = carried(yields[i], op.results[i]);
    }
  }
  for (size_t i = 0; i < op.results.size(); ++i) values_[op.results[i]] = carried_out[i];
}

void HostEmitter::known_side(const Operation& op, bool condition) {
  const Region& side = op.regions[condition ? 0 : 1];
  region(side);
  const std::vector<ValueId> yields = yielded(side);
  for (size_t i = 0; i < op.results.size(); ++i) {
    values_[op.results[i]] = carried(yields[i], op.results[i]);
  }
}

}  // namespace tenon::codegen
