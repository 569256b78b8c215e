// The arithmetic of pipelines: a loop over steps, each of which waits for its stage, reads it and
// gives it back (emit_gpu_pipeline.cc has the stages and who fills them).
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <utility>

#include "codegen/llvm/emit_gpu.h"
#include "codegen/llvm/ptx.h"

namespace tenon::codegen {

namespace {

constexpr int kUnit = 16;  // bytes that swizzled rows exchange

}  // namespace

// A loop over steps while it is emitted.
struct GpuEmitter::StepLoop {
  const Operation& op;
  Value *lo, *hi;
  std::vector<Tile> initials = {}, lasts = {};  // of what is carried, in words
  llvm::BasicBlock *before = nullptr, *first = nullptr, *body = nullptr, *drain = nullptr,
                   *exit = nullptr;
  llvm::PHINode* counter = nullptr;
  Tile along = {};
  std::vector<llvm::PHINode*> carried = {}, carried_along = {};
};

// Steps of the arithmetic: `before_step` waits for the stage, `after_step` may give it back. What
// is carried leaves through `drain`, which only runs where there was a step.
void GpuEmitter::consume_steps(const Operation& op, const StepHooks& hooks) {
  const Region& inside = op.regions[1];
  StepLoop loop = begin_steps(op);
  ir_.SetInsertPoint(loop.first);
  if (hooks.first) loop.along = hooks.first();
  loop.first = ir_.GetInsertBlock();
  ir_.CreateBr(loop.body);

  ir_.SetInsertPoint(loop.body);
  carry_into_step(loop);
  enter_block();
  values_[inside.arguments[0]] = {loop.counter};
  values_[inside.arguments[1]] = {hooks.before_step(loop.counter)};
  forget_lazy();
  if (hooks.take) hooks.take(loop.along);
  region(inside);
  read_already_.clear();
  loop.lasts = carried_words(op, yielded(inside));
  hooks.after_step(loop.counter);
  end_step(loop, hooks);

  ir_.SetInsertPoint(loop.drain);
  hooks.drain(loop.lasts);
  end_steps(loop);
  enter_block();
}

GpuEmitter::StepLoop GpuEmitter::begin_steps(const Operation& op) {
  auto& context = module_.getContext();
  StepLoop loop{.op = op, .lo = single(op.operands[0]), .hi = single(op.operands[1])};
  loop.initials = carried_words(op, std::span(op.operands).subspan(2));
  loop.before = ir_.GetInsertBlock();
  loop.body = llvm::BasicBlock::Create(context, "step", function_);
  loop.drain = llvm::BasicBlock::Create(context, "drain", function_);
  loop.exit = llvm::BasicBlock::Create(context, "end_steps", function_);
  loop.first = llvm::BasicBlock::Create(context, "first_step", function_);
  ir_.CreateCondBr(ir_.CreateICmpSLT(loop.lo, loop.hi), loop.first, loop.exit);
  return loop;
}

// The tiles that become the loop's results, or would after one more step.
std::vector<GpuEmitter::Tile> GpuEmitter::carried_words(const Operation& op,
                                                        std::span<const ValueId> values) {
  std::vector<Tile> out;
  for (size_t i = 0; i < op.results.size(); ++i) {
    out.push_back(in_words(carried(values[i], op.results[i]), op.results[i]));
  }
  return out;
}

// Phis of the counter, of what is carried and of what goes along.
void GpuEmitter::carry_into_step(StepLoop& loop) {
  const std::vector<ValueId>& results = loop.op.results;
  const std::vector<ValueId>& arguments = loop.op.regions[1].arguments;
  auto phi = [&](Value* initial) {
    llvm::PHINode* out = ir_.CreatePHI(initial->getType(), 2);
    out->addIncoming(initial, loop.first);
    return out;
  };
  loop.counter = phi(loop.lo);
  for (size_t i = 0; i < results.size(); ++i) {
    Tile& argument = values_[arguments[2 + i]];
    argument.clear();
    for (Value* initial : loop.initials[i]) {
      loop.carried.push_back(phi(initial));
      argument.push_back(loop.carried.back());
    }
  }
  for (Value*& value : loop.along) {
    loop.carried_along.push_back(phi(value));
    value = loop.carried_along.back();
  }
  for (size_t i = 0; i < results.size(); ++i) {
    Tile& argument = values_[arguments[2 + i]];
    argument = out_of_words(argument, results[i]);
  }
}

void GpuEmitter::end_step(StepLoop& loop, const StepHooks& hooks) {
  Value* next = ir_.CreateNSWAdd(loop.counter, index_constant(1));
  llvm::BasicBlock* latch = ir_.GetInsertBlock();
  loop.counter->addIncoming(next, latch);
  size_t piece = 0;
  for (const Tile& last : loop.lasts) {
    for (Value* value : last) loop.carried[piece++]->addIncoming(value, latch);
  }
  if (hooks.next) loop.along = hooks.next();
  for (size_t i = 0; i < loop.carried_along.size(); ++i) {
    loop.carried_along[i]->addIncoming(loop.along[i], latch);
  }
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, loop.hi), loop.body, loop.drain);
}

// From where the last step was drained: results, with or without a step.
void GpuEmitter::end_steps(const StepLoop& loop) {
  const std::vector<ValueId>& results = loop.op.results;
  llvm::BasicBlock* drained = ir_.GetInsertBlock();
  ir_.CreateBr(loop.exit);
  ir_.SetInsertPoint(loop.exit);
  for (size_t i = 0; i < results.size(); ++i) {
    Tile merged;
    for (size_t p = 0; p < loop.lasts[i].size(); ++p) {
      llvm::PHINode* out = ir_.CreatePHI(loop.lasts[i][p]->getType(), 2);
      out->addIncoming(loop.initials[i][p], loop.before);
      out->addIncoming(loop.lasts[i][p], drained);
      merged.push_back(out);
    }
    values_[results[i]] = std::move(merged);
  }
  for (ValueId id : results) values_[id] = out_of_words(values_[id], id);
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

// A pipeline's stages as its arithmetic meets them, step by step.
struct GpuEmitter::StageUse {
  const Steps& steps;
  const Region& consume;
  std::vector<const Operation*> reads;       // readable_ahead
  bool runs_on;                              // products do, when their step ends
  Value *lo, *hi;                            // steps
  Value *stage = nullptr, *phase = nullptr;  // of this step
  Tile for_next = {};                        // what the next step reads
};

void GpuEmitter::load_position(StageUse& use) {
  use.stage = ir_.CreateLoad(ir_.getInt32Ty(), use.steps.stage);
  use.phase = ir_.CreateLoad(ir_.getInt32Ty(), use.steps.phase);
}

void GpuEmitter::take_reads(const StageUse& use, const Tile& all) {
  auto next = all.begin();
  for (const Operation* read : use.reads) {
    int count = layouts_[read->results[0]].registers();
    values_[read->results[0]] = Tile(next, next + count);
    read_already_.insert(read);
    next += count;
  }
}

// Not ahead: the assembler runs products one after the other if they surround a wait (C7513).
void GpuEmitter::read_within_step(StageUse& use, StepHooks& hooks) {
  hooks.before_step = [this, &use](Value* counter) {
    load_position(use);
    wait_for(full_barrier(use.steps, use.stage), use.phase);
    take_reads(use, read_all(use.reads, use.consume, use.stage));
    if (!use.runs_on) return as_index(use.stage);
    // Products of the step before may still read its stage: it is given back after their end.
    give_back_ = [this, &steps = use.steps, stage = use.stage, counter, lo = use.lo] {
      release(steps, stage_before(steps, stage), /*loads_ended=*/true,
              ir_.CreateICmpNE(counter, lo));
    };
    stages_in_flight_.begin_step(most_in_flight_);
    return as_index(use.stage);
  };
}

void GpuEmitter::read_step_ahead(StageUse& use, StepHooks& hooks) {
  hooks.first = [this, &use] {
    load_position(use);
    wait_for(full_barrier(use.steps, use.stage), use.phase);
    return read_all(use.reads, use.consume, use.stage);
  };
  hooks.take = [this, &use](const Tile& all) { take_reads(use, all); };
  hooks.before_step = [this, &use](Value* counter) {
    load_position(use);
    // Past the last step there is nothing to wait for: this step's own stage is full.
    Value* more = ir_.CreateICmpSLT(ir_.CreateNSWAdd(counter, index_constant(1)), use.hi);
    auto [next, next_phase] = following(use.steps, use.stage, use.phase);
    wait_for(full_barrier(use.steps, ir_.CreateSelect(more, next, use.stage)),
             ir_.CreateSelect(more, next_phase, use.phase));
    use.for_next = read_all(use.reads, use.consume, next);
    return as_index(use.stage);
  };
  hooks.next = [&use] { return use.for_next; };
}

void GpuEmitter::finish_running_on(const StageUse& use, std::vector<Tile>& lasts) {
  for (size_t i = 0; i < lasts.size(); ++i) {
    const Operation* made = definitions_[yielded(use.consume)[i]];
    if (made && in_flight_.contains(made)) lasts[i] = ptx::finish_products(ir_, lasts[i]);
  }
  release(use.steps, stage_before(use.steps, ir_.CreateLoad(ir_.getInt32Ty(), use.steps.stage)),
          /*loads_ended=*/true);
}

void GpuEmitter::consume(const Operation& op) {
  const Region& inside = op.regions[1];
  bool runs_on = std::ranges::any_of(
      inside.operations, [&](const Operation& product) { return in_flight_.contains(&product); });
  StageUse use{.steps = steps_[steps_of_[&op]],
               .consume = inside,
               .reads = readable_ahead(inside),
               .runs_on = runs_on,
               .lo = single(op.operands[0]),
               .hi = single(op.operands[1])};
  most_in_flight_ = groups_in_flight(inside);
  StepHooks hooks;
  if (runs_on || use.reads.empty() || reads_all(inside, use.reads)) {
    read_within_step(use, hooks);
  } else {
    read_step_ahead(use, hooks);
  }
  hooks.after_step = [&](Value*) {
    if (!runs_on) release(use.steps, use.stage, !loads_from_stage(inside));
    advance(use.steps, use.stage, use.phase);
  };
  hooks.drain = [&](std::vector<Tile>& lasts) {
    if (runs_on) finish_running_on(use, lasts);
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
  if (ring.row_bytes > 0) width = std::min(width, kUnit * 8 / bit_width(result.dtype));
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
  Value* mixed = ir_.CreateAnd(ir_.CreateLShr(byte, 3), number(ring.row_bytes - kUnit));
  return ir_.CreateXor(byte, mixed);
}

}  // namespace tenon::codegen
