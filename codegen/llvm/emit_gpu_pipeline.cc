// Rings and pipelines. With TMA (sm_90a) a warpgroup of its own fills the stages: one of its
// threads runs the kernel a second time, with nothing but indices, control flow and `produce`. A
// stage has two barriers: it is full when its bytes have arrived, empty when every warp that
// computes has said so. Elsewhere all threads copy, a few steps ahead, and wait for each other.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/Module.h>

#include "codegen/arch_spec.h"
#include "codegen/estimate.h"
#include "codegen/llvm/emit_gpu.h"
#include "codegen/llvm/ptx.h"

namespace tenon::codegen {

namespace {

using ptx::Instruction;

// One thread copies; where registers are dealt anew it takes a warpgroup to give some back.
constexpr int kCopyThreads = 32, kCopyThreadsBesideProducts = 128;
constexpr uint64_t kNormalPolicy = 0x1000000000000000;  // as createpolicy would make it

int64_t bytes_of(const Type& type) { return type.elements() * ((bit_width(type.dtype) + 7) / 8); }

}  // namespace

// ---- barriers of stages

llvm::Value* GpuEmitter::shared_address(int64_t offset) {
  return ir_.CreatePtrToInt(shared_pointer(offset), ir_.getInt32Ty());
}

llvm::Value* GpuEmitter::instruct(ptx::Instruction instruction,
                                  std::initializer_list<Value*> operands) {
  return ptx::emit(ir_, instruction, std::span(operands.begin(), operands.size()));
}

llvm::Value* GpuEmitter::full_barrier(const Steps& steps, Value* stage) {
  return plus(shared_address(steps.barriers), times(stage, 8));
}

llvm::Value* GpuEmitter::empty_barrier(const Steps& steps, Value* stage) {
  return plus(shared_address(steps.barriers + 8 * steps.stages), times(stage, 8));
}

void GpuEmitter::wait_for(Value* barrier, Value* parity) {
  auto& context = module_.getContext();
  auto* wait = llvm::BasicBlock::Create(context, "wait", function_);
  auto* done = llvm::BasicBlock::Create(context, "arrived", function_);
  ir_.CreateBr(wait);
  ir_.SetInsertPoint(wait);
  ir_.CreateCondBr(instruct(Instruction::kBarrierTryWait, {barrier, parity}), done, wait);
  ir_.SetInsertPoint(done);
}

// One arrival of every warp, after the last of its lanes has read. No branch: the assembler gives
// up on asynchronous products around one.
//
// Loads into registers go through another proxy than the copies that fill the stage again: without
// a fence an arrival overtakes loads that still wait for shared memory, and the copy overwrites
// what they were to read. Where products have ended that took what was loaded, so have the loads.
void GpuEmitter::release(const Steps& steps, Value* stage, bool loads_ended, Value* condition) {
  if (!loads_ended) instruct(Instruction::kFenceAsyncProxy, {});
  ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_bar_warp_sync, {}, {ir_.getInt32(~0u)});
  // Asked of the warp, not of a thread's number, which ptxas may have to read again.
  Value* one =
      has_async_products_ ? instruct(Instruction::kElect, {}) : ir_.CreateICmpEQ(lane_, number(0));
  instruct(Instruction::kBarrierArrive, {both(one, condition), empty_barrier(steps, stage)});
}

llvm::Value* GpuEmitter::stage_before(const Steps& steps, Value* stage) {
  Value* wraps = ir_.CreateICmpEQ(stage, number(0));
  return ir_.CreateSelect(wraps, number(steps.stages - 1), ir_.CreateSub(stage, number(1)));
}

std::pair<llvm::Value*, llvm::Value*> GpuEmitter::following(const Steps& steps, Value* stage,
                                                            Value* phase) {
  Value* next = plus(stage, 1);
  Value* wraps = ir_.CreateICmpEQ(next, number(steps.stages));
  return {ir_.CreateSelect(wraps, number(0), next),
          ir_.CreateXor(phase, ir_.CreateZExt(wraps, ir_.getInt32Ty()))};
}

void GpuEmitter::advance(const Steps& steps, Value* stage, Value* phase) {
  auto [next, next_phase] = following(steps, stage, phase);
  ir_.CreateStore(next, steps.stage);
  ir_.CreateStore(next_phase, steps.phase);
}

llvm::Value* GpuEmitter::as_index(Value* stage) { return ir_.CreateZExt(stage, ir_.getInt64Ty()); }

// ---- roles

bool GpuEmitter::has_matrix_stores() const { return arch_spec(target_.arch).uses.stmatrix; }

int GpuEmitter::copy_threads() const {
  return has_async_products_ ? kCopyThreadsBesideProducts : kCopyThreads;
}

int GpuEmitter::threads() const { return threads_ + (specialised_ ? copy_threads() : 0); }

void GpuEmitter::make_positions() {
  auto variable = [&](llvm::Type* type) { return ir_.CreateAlloca(type); };
  for (Steps& steps : steps_) {
    for (llvm::AllocaInst** place : {&steps.stage, &steps.phase, &steps.fill}) {
      *place = variable(ir_.getInt32Ty());
    }
  }
  if (!specialised_) return;
  waited_ = variable(ir_.getInt1Ty());
  begin_ = variable(ir_.getInt64Ty());
}

void GpuEmitter::start_positions(int phase) {
  for (Steps& steps : steps_) {
    ir_.CreateStore(number(0), steps.stage);
    ir_.CreateStore(number(phase), steps.phase);
  }
}

// Before the roles part: barriers, and PDL of the next launch.
void GpuEmitter::prepare_roles() {
  when(ir_.CreateICmpEQ(thread_, number(0)), [&] {
    for (const Steps& steps : steps_) {
      for (int stage = 0; stage < steps.stages; ++stage) {
        instruct(Instruction::kBarrierInit, {full_barrier(steps, number(stage)), number(1)});
        instruct(Instruction::kBarrierInit,
                 {empty_barrier(steps, number(stage)), number(threads_ / kWarp)});
      }
    }
    instruct(Instruction::kFenceBarrierInit, {});
    instruct(Instruction::kFenceAsyncProxy, {});
    for (size_t i = 0; i < tma_descriptors_.size(); ++i) {
      instruct(Instruction::kPrefetchTensorMap, {descriptor_value(i)});
    }
  });
  ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {});
  instruct(Instruction::kGridDepLaunch, {});
}

// Without roles nothing is fetched ahead: who comes behind may fetch, and this kernel waits.
void GpuEmitter::launch_dependents_and_wait() {
  instruct(Instruction::kGridDepLaunch, {});
  instruct(Instruction::kGridDepWait, {});
}

llvm::Value* GpuEmitter::descriptor_value(size_t descriptor) {
  return function_->getArg(static_cast<unsigned>(kernel_.parameters.size() + descriptor));
}

void GpuEmitter::run_roles() {
  auto& context = module_.getContext();
  prepare_roles();
  auto* copies = llvm::BasicBlock::Create(context, "copies", function_);
  auto* computes = llvm::BasicBlock::Create(context, "computes", function_);
  ir_.CreateCondBr(ir_.CreateICmpULT(thread_, number(threads_)), computes, copies);
  const std::vector<Tile> at_start = values_;
  int registers = registers_to_compute();

  ir_.SetInsertPoint(copies);
  role_ = Role::kCopies;
  if (registers > 0) instruct(Instruction::kSetMaxNRegDec, {number(kCopyRegisters)});
  when(ir_.CreateICmpEQ(thread_, number(threads_)), [&] {
    start_positions(1);  // a fresh barrier counts as passed once
    ir_.CreateStore(waits_late() ? ir_.getTrue() : ir_.getFalse(), waited_);
    region(kernel_.body);
  });
  ir_.CreateRetVoid();

  values_ = at_start;
  uniform_.clear();
  ir_.SetInsertPoint(computes);
  role_ = Role::kComputes;
  if (registers > 0) instruct(Instruction::kSetMaxNRegInc, {number(registers)});
  start_positions(0);
  if (!waits_late()) instruct(Instruction::kGridDepWait, {});
  make_tables();
  region(kernel_.body);
  ir_.CreateRetVoid();
}

// ---- operations

void GpuEmitter::wait_before(const Operation& op) {
  if (!specialised_) return;
  auto buffer = static_cast<size_t>(op.operands[0]);
  bool is_parameter = buffer < kernel_.parameters.size();
  if (!is_parameter) return;
  const Parameter& parameter = kernel_.parameters[buffer];
  if (parameter.constant || parameter.own) return;
  if (role_ == Role::kCopies) {  // what it reads decides what it fetches
    instruct(Instruction::kGridDepWait, {});
    ir_.CreateStore(ir_.getTrue(), waited_);
  } else if (waits_late() && !has_waited_) {
    instruct(Instruction::kGridDepWait, {});
    has_waited_ = true;
  }
}

void GpuEmitter::pipeline_operation(const Operation& op) {
  switch (op.op) {
    case Op::kRing:
      return;
    case Op::kBulkLoad:
    case Op::kTmaLoad:
      return fetch(op);
    case Op::kRead:
      if (folded_.contains(&op)) return clear_for_products(op);
      if (!read_already_.contains(&op)) values_[op.results[0]] = read(op);
      return;
    default:
      if (role_ == Role::kCopies) return produce(op);
      return specialised_ ? consume(op) : copy_and_consume(op);
  }
}

void GpuEmitter::fetch(const Operation& op) {
  bool constant = kernel_.parameters[static_cast<size_t>(op.operands[2])].constant;
  if (fetches_ == (constant ? Fetches::kOthers : Fetches::kConstants)) return;
  if (op.op == Op::kBulkLoad) return specialised_ ? bulk_load(op) : bulk_load_by_threads(op);
  specialised_ ? tma_load(op) : tma_load_by_threads(op);
}

llvm::Value* GpuEmitter::stage_pointer(const Ring& ring, Value* stage) {
  Value* narrow = ir_.CreateTrunc(stage, ir_.getInt32Ty());
  return ir_.CreateInBoundsGEP(ir_.getInt8Ty(), shared_pointer(ring.offset),
                               as_index(times(narrow, ring.stage_bytes)));
}

void GpuEmitter::bulk_load(const Operation& op) {
  const Ring& ring = rings_[op.operands[0]];
  const Type& stage = type(op.operands[0]);
  Value* to = ir_.CreatePtrToInt(stage_pointer(ring, single(op.operands[1])), ir_.getInt32Ty());
  Value* from =
      ir_.CreateGEP(memory_type(stage.dtype), single(op.operands[2]), single(op.operands[3]));
  instruct(Instruction::kBulkLoad,
           {to, from, number(bytes_of(stage)), arrival_, ir_.getInt64(kNormalPolicy)});
}

void GpuEmitter::tma_load(const Operation& op) {
  const Ring& ring = rings_[op.operands[0]];
  Value* to = ir_.CreatePtrToInt(stage_pointer(ring, single(op.operands[1])), ir_.getInt32Ty());
  auto narrow = [&](size_t i) { return ir_.CreateTrunc(single(op.operands[i]), ir_.getInt32Ty()); };
  if (ring.row_bytes > 0 && ring.box_bytes > ring.row_bytes) {  // rows of several pieces
    Value* piece = ir_.CreateUDiv(narrow(4), number(ring.row_bytes / 2));
    instruct(Instruction::kTmaLoad3d, {to, descriptor_value(descriptor_of_[&op]), number(0), piece,
                                       narrow(3), arrival_, ir_.getInt64(kNormalPolicy)});
    return;
  }
  if (op.integer > 0) {
    Value* box = ir_.CreateUDiv(narrow(4), number(type(op.operands[0]).shape[1]));
    instruct(Instruction::kTmaLoad3d, {to, descriptor_value(descriptor_of_[&op]), number(0),
                                       narrow(3), box, arrival_, ir_.getInt64(kNormalPolicy)});
    return;
  }
  instruct(Instruction::kTmaLoad2d, {to, descriptor_value(descriptor_of_[&op]), narrow(4),
                                     narrow(3), arrival_, ir_.getInt64(kNormalPolicy)});
}

void GpuEmitter::produce(const Operation& op) {
  const Steps& steps = steps_[steps_of_[&op]];
  Value *lo = single(op.operands[0]), *hi = single(op.operands[1]);
  ir_.CreateStore(lo, begin_);
  when(ir_.CreateNot(ir_.CreateLoad(ir_.getInt1Ty(), waited_)), [&] { produce_first(op); });
  index_loop(ir_.CreateLoad(ir_.getInt64Ty(), begin_), hi, [&](Value* counter) {
    Value* stage = ir_.CreateLoad(ir_.getInt32Ty(), steps.stage);
    Value* phase = ir_.CreateLoad(ir_.getInt32Ty(), steps.phase);
    wait_for(empty_barrier(steps, stage), phase);
    arrival_ = full_barrier(steps, stage);
    instruct(Instruction::kBarrierExpect, {arrival_, number(steps.bytes)});
    fetch_step(op.regions[0], counter, stage);
    advance(steps, stage, phase);
  });
}

// The stages are empty at first: what no launch writes is fetched into all of them before
// griddepcontrol.wait, the rest afterwards.
void GpuEmitter::produce_first(const Operation& op) {
  const Steps& steps = steps_[steps_of_[&op]];
  Value *lo = single(op.operands[0]), *hi = single(op.operands[1]);
  Value* end = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, hi,
                                         ir_.CreateNSWAdd(lo, index_constant(steps.stages)));
  auto stage_of = [&](Value* counter) {
    return ir_.CreateTrunc(ir_.CreateSub(counter, lo), ir_.getInt32Ty());
  };
  fetches_ = Fetches::kConstants;
  index_loop(lo, end, [&](Value* counter) {
    arrival_ = full_barrier(steps, stage_of(counter));
    instruct(Instruction::kBarrierExpect, {arrival_, number(steps.bytes)});
    fetch_step(op.regions[0], counter, stage_of(counter));
  });
  instruct(Instruction::kGridDepWait, {});
  ir_.CreateStore(ir_.getTrue(), waited_);
  fetches_ = Fetches::kOthers;
  index_loop(lo, end, [&](Value* counter) {
    arrival_ = full_barrier(steps, stage_of(counter));
    fetch_step(op.regions[0], counter, stage_of(counter));
    advance(steps, stage_of(counter), ir_.CreateLoad(ir_.getInt32Ty(), steps.phase));
  });
  fetches_ = Fetches::kAll;
  ir_.CreateStore(ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, lo, end), begin_);
}

void GpuEmitter::fetch_step(const Region& produce, Value* counter, Value* stage) {
  values_[produce.arguments[0]] = {counter};
  values_[produce.arguments[1]] = {as_index(stage)};
  in_produce_ = true;
  region(produce);
  in_produce_ = false;
}

void GpuEmitter::index_loop(Value* lo, Value* hi, const std::function<void(Value*)>& body) {
  auto& context = module_.getContext();
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  auto* inside = llvm::BasicBlock::Create(context, "step", function_);
  auto* after = llvm::BasicBlock::Create(context, "end_steps", function_);
  ir_.CreateCondBr(ir_.CreateICmpSLT(lo, hi), inside, after);
  ir_.SetInsertPoint(inside);
  llvm::PHINode* counter = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  counter->addIncoming(lo, before);
  body(counter);
  Value* next = ir_.CreateNSWAdd(counter, index_constant(1));
  counter->addIncoming(next, ir_.GetInsertBlock());
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, hi), inside, after);
  ir_.SetInsertPoint(after);
}

}  // namespace tenon::codegen
