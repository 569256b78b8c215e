// Rings and pipelines. With TMA (sm_90a) a warpgroup of its own fills the stages: one of its
// threads runs the kernel a second time, with nothing but indices, control flow and `produce`. A
// stage has two barriers: it is full when its bytes have arrived, empty when every warp that
// computes has said so. Elsewhere all threads copy, a few steps ahead, and wait for each other.
#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/Module.h>

#include <algorithm>

#include "base/error.h"
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
constexpr int kChunk = 16;                              // bytes that one thread copies at once

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
  Value* first_lane = ir_.CreateICmpEQ(lane_, number(0));
  instruct(Instruction::kBarrierArrive, {both(first_lane, condition), empty_barrier(steps, stage)});
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

// Steps of the arithmetic: `before_step` waits for the stage, `after_step` may give it back. What
// is carried leaves through `drain`, which only runs where there was a step.
void GpuEmitter::consume_steps(const Operation& op, const StepHooks& hooks) {
  const Region& inside = op.regions[1];
  auto& context = module_.getContext();
  Value *lo = single(op.operands[0]), *hi = single(op.operands[1]);
  std::vector<Tile> initials;
  for (size_t i = 0; i < op.results.size(); ++i) {
    initials.push_back(in_words(carried(op.operands[2 + i], op.results[i]), op.results[i]));
  }
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  auto* body = llvm::BasicBlock::Create(context, "step", function_);
  auto* drain = llvm::BasicBlock::Create(context, "drain", function_);
  auto* exit = llvm::BasicBlock::Create(context, "end_steps", function_);
  auto* first = llvm::BasicBlock::Create(context, "first_step", function_);
  ir_.CreateCondBr(ir_.CreateICmpSLT(lo, hi), first, exit);
  ir_.SetInsertPoint(first);
  Tile along;
  if (hooks.first) along = hooks.first();
  first = ir_.GetInsertBlock();
  ir_.CreateBr(body);

  ir_.SetInsertPoint(body);
  llvm::PHINode* counter = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  counter->addIncoming(lo, first);
  std::vector<llvm::PHINode*> phis, along_phis;
  for (size_t i = 0; i < op.results.size(); ++i) {
    Tile& argument = values_[inside.arguments[2 + i]];
    argument.clear();
    for (Value* initial : initials[i]) {
      phis.push_back(ir_.CreatePHI(initial->getType(), 2));
      phis.back()->addIncoming(initial, first);
      argument.push_back(phis.back());
    }
  }
  for (Value*& value : along) {
    along_phis.push_back(ir_.CreatePHI(value->getType(), 2));
    along_phis.back()->addIncoming(value, first);
    value = along_phis.back();
  }
  for (size_t i = 0; i < op.results.size(); ++i) {
    Tile& argument = values_[inside.arguments[2 + i]];
    argument = out_of_words(argument, op.results[i]);
  }
  enter_block();
  values_[inside.arguments[0]] = {counter};
  values_[inside.arguments[1]] = {hooks.before_step(counter)};
  forget_lazy();
  if (hooks.take) hooks.take(along);
  region(inside);
  read_already_.clear();
  std::vector<Tile> lasts;
  std::vector<ValueId> yields = yielded(inside);
  for (size_t i = 0; i < op.results.size(); ++i) {
    lasts.push_back(in_words(carried(yields[i], op.results[i]), op.results[i]));
  }
  hooks.after_step(counter);
  Value* next = ir_.CreateNSWAdd(counter, index_constant(1));
  llvm::BasicBlock* latch = ir_.GetInsertBlock();
  counter->addIncoming(next, latch);
  size_t piece = 0;
  for (const Tile& last : lasts) {
    for (Value* value : last) phis[piece++]->addIncoming(value, latch);
  }
  if (hooks.next) along = hooks.next();
  for (size_t i = 0; i < along_phis.size(); ++i) along_phis[i]->addIncoming(along[i], latch);
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, hi), body, drain);

  ir_.SetInsertPoint(drain);
  hooks.drain(lasts);
  llvm::BasicBlock* drained = ir_.GetInsertBlock();
  ir_.CreateBr(exit);
  ir_.SetInsertPoint(exit);
  for (size_t i = 0; i < op.results.size(); ++i) {
    Tile merged;
    for (size_t p = 0; p < lasts[i].size(); ++p) {
      llvm::PHINode* out = ir_.CreatePHI(lasts[i][p]->getType(), 2);
      out->addIncoming(initials[i][p], before);
      out->addIncoming(lasts[i][p], drained);
      merged.push_back(out);
    }
    values_[op.results[i]] = std::move(merged);
  }
  for (ValueId id : op.results) values_[id] = out_of_words(values_[id], id);
  enter_block();
}

// Two 16-bit registers go along as one word: the assembler would give each a register of its own.
GpuEmitter::Tile GpuEmitter::in_words(const Tile& tile, ValueId id) {
  if (bit_width(type(id).dtype) != 16 || tile.size() % 2 != 0) return tile;
  Tile out;
  for (size_t r = 0; r < tile.size(); r += 2) out.push_back(pack_halves(tile[r], tile[r + 1]));
  return out;
}

GpuEmitter::Tile GpuEmitter::out_of_words(const Tile& words, ValueId id) {
  if (bit_width(type(id).dtype) != 16 || words.empty() || !words[0]->getType()->isIntegerTy(32)) {
    return words;
  }
  Tile out;
  for (Value* word : words) {
    for (int half : {0, 1}) out.push_back(half_of(word, half));
  }
  return out;
}

// What a step reads at places known from its beginning. It is read in the step before: products
// further down would have to wait for it.
std::vector<const Operation*> GpuEmitter::readable_ahead(const Region& consume) const {
  std::vector<const Operation*> out;
  for (const Operation& op : consume.operations) {
    if (op.op != Op::kRead || folded_.contains(&op) || op.operands[3] != kNone) continue;
    auto* offset = op.operands[2] == kNone ? nullptr : definitions_[op.operands[2]];
    bool known = op.operands[2] == kNone || (offset && offset->op == Op::kIndexConstant);
    if (known && op.operands[1] == consume.arguments[1]) out.push_back(&op);
  }
  return out;
}

// Nothing else looks at the stage: no reads of the next step need to be begun ahead.
bool GpuEmitter::reads_all(const Region& consume,
                           const std::vector<const Operation*>& reads) const {
  auto of_stage = std::ranges::count_if(consume.operations, [&](const Operation& op) {
    return std::ranges::count(op.operands, consume.arguments[1]) > 0;
  });
  return !reads.empty() && static_cast<size_t>(of_stage) == reads.size();
}

GpuEmitter::Tile GpuEmitter::read_all(const std::vector<const Operation*>& reads,
                                      const Region& consume, Value* stage) {
  ValueId argument = consume.arguments[1];
  Tile before = std::exchange(values_[argument], {as_index(stage)}), out;
  for (const Operation* op : reads) std::ranges::copy(read(*op), std::back_inserter(out));
  values_[argument] = std::move(before);
  return out;
}

// Whether a step reads its stage into registers; asynchronous products read it as copies write it.
bool GpuEmitter::loads_from_stage(const Region& consume) const {
  return std::ranges::any_of(consume.operations, [&](const Operation& op) {
    if (op.op == Op::kRead) return !folded_.contains(&op);
    return op.op == Op::kDot && ring_dot(kernel_, definitions_, op, threads_) &&
           !multiplies_async(op);
  });
}

void GpuEmitter::consume(const Operation& op) {
  const Steps& steps = steps_[steps_of_[&op]];
  const Region& inside = op.regions[1];
  Value *stage = nullptr, *phase = nullptr;
  Value *lo = single(op.operands[0]), *hi = single(op.operands[1]);
  bool runs_on = std::ranges::any_of(
      inside.operations, [&](const Operation& product) { return in_flight_.contains(&product); });
  most_in_flight_ = groups_in_flight(inside);
  std::vector<const Operation*> reads = readable_ahead(inside);
  auto wait_here = [&] {
    stage = ir_.CreateLoad(ir_.getInt32Ty(), steps.stage);
    phase = ir_.CreateLoad(ir_.getInt32Ty(), steps.phase);
    wait_for(full_barrier(steps, stage), phase);
  };
  auto take = [&](const Tile& all) {
    auto next = all.begin();
    for (const Operation* read : reads) {
      int count = layouts_[read->results[0]].registers();
      values_[read->results[0]] = Tile(next, next + count);
      read_already_.insert(read);
      next += count;
    }
  };
  StepHooks hooks;
  Tile for_next;
  if (runs_on || reads.empty() || reads_all(inside, reads)) {
    // Not ahead: the assembler runs products one after the other if they surround a wait (C7513).
    hooks.before_step = [&](Value* counter) {
      wait_here();
      take(read_all(reads, inside, stage));
      if (!runs_on) return as_index(stage);
      // Products of the step before may still read its stage: it is given back after their end.
      give_back_ = [this, &steps, stage, counter, lo] {
        release(steps, stage_before(steps, stage), /*loads_ended=*/true,
                ir_.CreateICmpNE(counter, lo));
      };
      stages_in_flight_.begin_step(most_in_flight_);
      return as_index(stage);
    };
  } else {
    hooks.first = [&] {
      wait_here();
      return read_all(reads, inside, stage);
    };
    hooks.take = take;
    hooks.before_step = [&](Value* counter) {
      stage = ir_.CreateLoad(ir_.getInt32Ty(), steps.stage);
      phase = ir_.CreateLoad(ir_.getInt32Ty(), steps.phase);
      // Past the last step there is nothing to wait for: this step's own stage is full.
      Value* more = ir_.CreateICmpSLT(ir_.CreateNSWAdd(counter, index_constant(1)), hi);
      auto [next, next_phase] = following(steps, stage, phase);
      wait_for(full_barrier(steps, ir_.CreateSelect(more, next, stage)),
               ir_.CreateSelect(more, next_phase, phase));
      for_next = read_all(reads, inside, next);
      return as_index(stage);
    };
    hooks.next = [&] { return for_next; };
  }
  hooks.after_step = [&](Value*) {
    if (!runs_on) release(steps, stage, !loads_from_stage(inside));
    advance(steps, stage, phase);
  };
  hooks.drain = [&](std::vector<Tile>& lasts) {
    if (!runs_on) return;
    for (size_t i = 0; i < lasts.size(); ++i) {
      const Operation* made = definitions_[yielded(inside)[i]];
      if (made && in_flight_.contains(made)) lasts[i] = ptx::finish_products(ir_, lasts[i]);
    }
    release(steps, stage_before(steps, ir_.CreateLoad(ir_.getInt32Ty(), steps.stage)),
            /*loads_ended=*/true);
  };
  consume_steps(op, hooks);
}

// Elements that one vector takes from a stage.
int GpuEmitter::read_width(const Operation& op) {
  const Ring& ring = rings_[op.operands[0]];
  const Type& result = type(op.results[0]);
  const Layout& layout = layouts_[op.results[0]];
  int columns = result.shape.back(), width = 1;
  if (layout.is_bits()) width = layout.neighbours();
  if (layout.kind == Layout::Kind::kDealt && columns % layout.run == 0) width = layout.run;
  if (!op.integers.empty() && op.integers.back() != 1) return 1;
  if (ring.row_bytes > 0) width = std::min(width, kChunk * 8 / bit_width(result.dtype));
  int64_t multiple_of = op.integers.size() == 2 ? op.integers[0] : columns;
  if (op.operands[2] != kNone) {
    auto* first = llvm::dyn_cast<llvm::ConstantInt>(single(op.operands[2]));
    multiple_of |= first ? first->getSExtValue() : 1;
  }
  while (multiple_of % width != 0) width /= 2;
  return width;
}

// Rows of TMA boxes are swizzled: 16-byte units change places with those whose number differs in
// the row's low bits.
GpuEmitter::Tile GpuEmitter::read(const Operation& op) {
  const Ring& ring = rings_[op.operands[0]];
  const Type& result = type(op.results[0]);
  const Layout& layout = layouts_[op.results[0]];
  int bytes = (bit_width(result.dtype) + 7) / 8;
  std::vector<int64_t> strides{result.shape.back(), 1};
  if (!op.integers.empty()) strides = {op.integers.front(), op.integers.back()};
  Value* base = stage_pointer(ring, single(op.operands[1]));
  Value* first = op.operands[2] == kNone
                     ? number(0)
                     : ir_.CreateTrunc(single(op.operands[2]), ir_.getInt32Ty());
  auto scaled = [&](Value* position, int64_t stride) {
    return stride == 0 ? number(0) : times(position, stride);
  };
  int width = read_width(op);
  Tile out;
  for (int r = 0; r < layout.registers(); r += width) {
    Place at = place(layout, r, result);
    Value* element = plus(first, plus(scaled(at.row, strides[0]), scaled(at.column, strides[1])));
    if (at.live) element = ir_.CreateSelect(at.live, element, number(0));
    Value* byte = times(element, bytes);
    if (ring.row_bytes > 0) byte = swizzled(ring, byte);
    Value* pointer = ir_.CreateInBoundsGEP(ir_.getInt8Ty(), base, as_index(byte));
    Value* counts = op.operands[3] == kNone ? nullptr : is_before(op.operands[3], at.row);
    for (Value* value : load_vector(result.dtype, pointer, width)) {
      Value* zero = llvm::Constant::getNullValue(value->getType());
      out.push_back(counts ? ir_.CreateSelect(counts, value, zero) : value);
    }
  }
  return out;
}

// 128-byte rows: unit ^= row & 7; narrower ones repeat after 1024 bytes as well.
llvm::Value* GpuEmitter::swizzled(const Ring& ring, Value* byte) {
  Value* mixed = ir_.CreateAnd(ir_.CreateLShr(byte, 3), number(ring.row_bytes - kChunk));
  return ir_.CreateXor(byte, mixed);
}

}  // namespace tenon::codegen
