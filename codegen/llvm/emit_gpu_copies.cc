// Pipelines without TMA: every thread copies its share of a stage, a few steps ahead of the
// arithmetic, and all wait for each other once a step.
#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <algorithm>

#include "base/error.h"
#include "codegen/llvm/emit_gpu.h"

namespace tenon::codegen {

namespace {

constexpr int kChunk = 16;  // bytes

}  // namespace

// body(chunk) for every 16 bytes of a stage, dealt over the threads.
void GpuEmitter::for_chunks(int64_t bytes, const std::function<void(Value*)>& body) {
  if (bytes % kChunk != 0) {
    throw UserError(fmt::format("kernel @{}: a stage must be a multiple of {} bytes, not {}",
                                kernel_.name, kChunk, bytes));
  }
  int64_t chunks = bytes / kChunk;
  for (int64_t first = 0; first < chunks; first += threads_) {
    Value* chunk = plus(thread_, first);
    bool all = first + threads_ <= chunks;
    when(all ? nullptr : ir_.CreateICmpULT(chunk, number(chunks)), [&] { body(chunk); });
  }
}

void GpuEmitter::bulk_load_by_threads(const Operation& op) {
  const Ring& ring = rings_[op.operands[0]];
  const Type& stage = type(op.operands[0]);
  Value* to = stage_pointer(ring, single(op.operands[1]));
  Value* from =
      ir_.CreateGEP(memory_type(stage.dtype), single(op.operands[2]), single(op.operands[3]));
  for_chunks(stage.elements() * bit_width(stage.dtype) / 8, [&](Value* chunk) {
    Value* byte = as_index(times(chunk, kChunk));
    ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_cp_async_cg_shared_global_16, {},
                        {ir_.CreateInBoundsGEP(ir_.getInt8Ty(), to, byte),
                         ir_.CreateGEP(ir_.getInt8Ty(), from, byte)});
  });
}

// What lies outside the matrix is copied as no bytes and zeros behind them.
void GpuEmitter::tma_load_by_threads(const Operation& op) {
  const Ring& ring = rings_[op.operands[0]];
  const Type& stage = type(op.operands[0]);
  int element_bytes = bit_width(stage.dtype) / 8, units = ring.box_bytes / kChunk;
  auto height = stage.shape[0] / std::max(1, static_cast<int>(op.integer));
  auto at = [&](size_t i) { return single(op.operands[i]); };
  Value* to = stage_pointer(ring, at(1));
  for_chunks(int64_t{stage.shape[0]} * ring.box_bytes, [&](Value* chunk) {
    Value* unit = ir_.CreateURem(chunk, number(units));
    Value* in_stage = ir_.CreateUDiv(chunk, number(units));
    Value* row = ir_.CreateNSWAdd(at(3), as_index(ir_.CreateURem(in_stage, number(height))));
    Value* box = ir_.CreateUDiv(in_stage, number(height));
    Value* in_row = plus(times(box, stage.shape[1]), times(unit, kChunk / element_bytes));
    Value* column = ir_.CreateNSWAdd(at(4), as_index(in_row));
    Value* left = ir_.CreateNSWMul(ir_.CreateNSWSub(at(6), column), index_constant(element_bytes));
    left = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, left, index_constant(kChunk));
    left = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, left, index_constant(0));
    left = ir_.CreateSelect(ir_.CreateICmpSLT(row, at(5)), left, index_constant(0));
    Value* offset = ir_.CreateNSWAdd(ir_.CreateNSWMul(row, at(7)), column);
    offset =
        ir_.CreateSelect(ir_.CreateICmpSGT(left, index_constant(0)), offset, index_constant(0));
    Value* byte = times(chunk, kChunk);
    Value* place = as_index(ring.row_bytes > 0 ? swizzled(ring, byte) : byte);
    ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_cp_async_cg_shared_global_16_s, {},
                        {ir_.CreateInBoundsGEP(ir_.getInt8Ty(), to, place),
                         ir_.CreateGEP(memory_type(stage.dtype), at(2), offset),
                         ir_.CreateTrunc(left, ir_.getInt32Ty())});
  });
}

void GpuEmitter::copy_step(const Operation& op, Value* counter) {
  const Steps& steps = steps_[steps_of_[&op]];
  Value* stage = ir_.CreateLoad(ir_.getInt32Ty(), steps.fill);
  when(ir_.CreateICmpSLT(counter, single(op.operands[1])),
       [&] { fetch_step(op.regions[0], counter, stage); });
  ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_cp_async_commit_group, {}, {});
  Value* next = plus(stage, 1);
  Value* wraps = ir_.CreateICmpEQ(next, number(steps.stages));
  ir_.CreateStore(ir_.CreateSelect(wraps, number(0), next), steps.fill);
}

void GpuEmitter::copy_and_consume(const Operation& op) {
  const Steps& steps = steps_[steps_of_[&op]];
  int ahead = steps.stages - 1;
  Value* lo = single(op.operands[0]);
  ir_.CreateStore(ir_.CreateLoad(ir_.getInt32Ty(), steps.stage), steps.fill);
  emit_barrier();  // stages may still be read by the pipeline before
  index_loop(lo, ir_.CreateNSWAdd(lo, index_constant(ahead)),
             [&](Value* counter) { copy_step(op, counter); });
  Value *stage = nullptr, *phase = nullptr;
  StepHooks hooks;
  hooks.before_step = [&](Value* counter) {
    stage = ir_.CreateLoad(ir_.getInt32Ty(), steps.stage);
    phase = ir_.CreateLoad(ir_.getInt32Ty(), steps.phase);
    ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_cp_async_wait_group, {}, {number(ahead - 1)});
    emit_barrier();
    copy_step(op, ir_.CreateNSWAdd(counter, index_constant(ahead)));
    return as_index(stage);
  };
  hooks.after_step = [&](Value*) { advance(steps, stage, phase); };
  hooks.drain = [](std::vector<Tile>&) {};
  consume_steps(op, hooks);
}

}  // namespace tenon::codegen
