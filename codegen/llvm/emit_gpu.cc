#include "codegen/llvm/emit_gpu.h"

#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/PatternMatch.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "codegen/llvm/emit_remainder.h"

namespace tenon::codegen {

GpuEmitter::GpuEmitter(const Kernel& kernel, int threads, const GpuTarget& target,
                       llvm::Module& module, llvm::IRBuilderBase& ir)
    : KernelEmitter(kernel, module, ir),
      target_(target),
      threads_(threads),
      layouts_(assign_layouts(kernel, threads)),
      definitions_(definitions_of(kernel)),
      users_(kernel.types.size()),
      rings_of_tf32_(rings_of_tf32(kernel)),
      read_(kernel.types.size()),
      written_(kernel.types.size()),
      pdl_(pdl_of(kernel)),
      needed_(kernel.types.size()) {}

llvm::Function* GpuEmitter::run() {
  survey(kernel_.body);
  specialised_ = !steps_.empty() && arch_spec(target_.arch).specialises_warps();
  create_function();
  read_position();
  place_shared_memory();
  folded_ = folded_into_products(kernel_, definitions_, threads_);
  find_filled_scratch();
  plan_lazy(kernel_.body);
  find_running();
  plan_turned_stores();
  make_positions();
  if (specialised_) {
    plan_copies(kernel_.body);
    run_roles();
  } else {
    start_positions(0);
    if (uses_pdl()) launch_dependents_and_wait();
    make_tables();
    region(kernel_.body);
    ir_.CreateRetVoid();
  }
  return function_;
}

// void kernel(parameters in order): a pointer for a buffer, an i64 for an index.
void GpuEmitter::create_function() {
  llvm::Type* global = ir_.getPtrTy(1);
  std::vector<llvm::Type*> parameters;
  for (const Parameter& parameter : kernel_.parameters) {
    bool is_buffer = parameter.type.kind == Type::Kind::kBuffer;
    parameters.push_back(is_buffer ? global : ir_.getInt64Ty());
  }
  for (size_t i = 0; i < tma_descriptors().size(); ++i) parameters.push_back(ir_.getPtrTy());
  auto* signature = llvm::FunctionType::get(ir_.getVoidTy(), parameters, false);
  function_ =
      llvm::Function::Create(signature, llvm::Function::ExternalLinkage, kernel_.name, module_);
  function_->setCallingConv(llvm::CallingConv::PTX_Kernel);
  // LLVM then knows that vectors may be used, and drops the question and the way without them.
  for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
    if (!kernel_.parameters[i].aligned) continue;
    function_->addParamAttr(static_cast<unsigned>(i), llvm::Attribute::getWithAlignment(
                                                          module_.getContext(), llvm::Align(16)));
  }
  for (size_t i = 0; i < tma_descriptors().size(); ++i) {
    auto argument = static_cast<unsigned>(kernel_.parameters.size() + i);
    auto* bytes = llvm::ArrayType::get(ir_.getInt8Ty(), 128);
    function_->addParamAttr(argument,
                            llvm::Attribute::getWithByValType(module_.getContext(), bytes));
    function_->addParamAttr(
        argument, llvm::Attribute::getWithAlignment(module_.getContext(), llvm::Align(64)));
  }
  ir_.SetInsertPoint(llvm::BasicBlock::Create(module_.getContext(), "entry", function_));
  for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
    values_[i] = {function_->getArg(static_cast<unsigned>(i))};
  }
}

// Which thread of which task this is.
void GpuEmitter::read_position() {
  auto special = [&](llvm::Intrinsic::ID id) { return ir_.CreateIntrinsic(id, {}, {}); };
  thread_ = special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
  lane_ = ir_.CreateAnd(thread_, number(kWarp - 1));
  warp_ = ir_.CreateLShr(thread_, number(5));
  auto wide = [&](Value* v) { return ir_.CreateZExt(v, ir_.getInt64Ty()); };
  Value* across = wide(special(llvm::Intrinsic::nvvm_read_ptx_sreg_nctaid_x));
  task_ = ir_.CreateNSWAdd(
      ir_.CreateNSWMul(wide(special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_y)), across),
      wide(special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x)));
}

void GpuEmitter::place_shared_memory() {
  auto* bytes = llvm::ArrayType::get(ir_.getInt8Ty(), 0);
  auto* base = new llvm::GlobalVariable(
      module_, bytes, /*isConstant=*/false, llvm::GlobalValue::ExternalLinkage, nullptr,
      kernel_.name + "_shared", nullptr, llvm::GlobalValue::NotThreadLocal, /*AddressSpace=*/3);
  base->setAlignment(llvm::Align(steps_.empty() ? 128 : 1024));
  shared_base_ = base;
  place_rings();
  for (auto [id, offset] : scratch_) values_[id] = {shared_pointer(shared_.keep(offset))};
}

// Definitions, scratch and the use of buffers, before anything is emitted.
void GpuEmitter::survey(const Region& region) {
  for (const Operation& op : region.operations) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (op.operands[i] != kNone) users_[op.operands[i]].emplace_back(&op, i);
    }
    switch (op.op) {
      case Op::kAlloc:
        scratch_.emplace_back(op.results[0],
                              op.integer * ((bit_width(type(op.results[0]).dtype) + 7) / 8));
        break;
      case Op::kRing:
        plan_ring(op);
        break;
      case Op::kDot:
        has_async_products_ |= multiplies_async(op);
        has_grouped_products_ |= op.integer > 0;
        break;
      case Op::kFor:
        for (size_t i = 0; i < op.results.size(); ++i) {
          carried_by_[op.regions[0].arguments[1 + i]] = {&op, i};
        }
        break;
      case Op::kLoad:
      case Op::kGather:
        read_[op.operands[0]] = true;
        break;
      case Op::kScatter:
        scattered_.push_back(type(op.operands[0]).dtype);
        [[fallthrough]];
      case Op::kStore:
        written_[op.operands[0]] = true;
        break;
      default:
        break;
    }
    for (const Region& inner : op.regions) survey(inner);
    if (op.op == Op::kPipeline) plan_pipeline(op);  // knows who reads what it fetches
    if (op.op == Op::kPipeline) plan_in_flight(op);
  }
}

GpuEmitter::Tile GpuEmitter::carried(ValueId value, ValueId as) {
  if (role_ == Role::kCopies && !needed_[as]) return {};
  return in_layout(value, layouts_[as]);
}

// Tables that are constants come into shared memory once: constant memory would be read one entry
// after the other. Equal ones are one: every unrolled function brings its own.
void GpuEmitter::make_tables() {
  std::map<std::pair<DType, std::vector<int64_t>>, int64_t> kept;
  std::function<void(const Region&)> collect = [&](const Region& region) {
    for (const Operation& op : region.operations) {
      for (const Region& inner : op.regions) collect(inner);
      if (op.op != Op::kLookup) continue;
      const Operation* table = definitions_[op.operands[0]];
      if (!table || table->op != Op::kConstant || table->integers.empty()) continue;
      DType dtype = type(op.operands[0]).dtype;
      auto [place, is_new] = kept.try_emplace({dtype, table->integers});
      if (is_new) place->second = keep_table(dtype, table->integers);
      tables_[table] = place->second;
    }
  };
  collect(kernel_.body);
  if (!tables_.empty()) emit_barrier();
}

// Where in shared memory it will be after a barrier.
int64_t GpuEmitter::keep_table(DType dtype, const std::vector<int64_t>& table) {
  std::vector<llvm::Constant*> entries;
  for (int64_t entry : table) {
    Value* element = constant_element(dtype, std::bit_cast<double>(entry), entry);
    entries.push_back(llvm::cast<llvm::Constant>(to_memory(dtype, element)));
  }
  llvm::Type* element = memory_type(dtype);
  auto* array = llvm::ArrayType::get(element, entries.size());
  auto* constant = new llvm::GlobalVariable(
      module_, array, /*isConstant=*/true, llvm::GlobalValue::InternalLinkage,
      llvm::ConstantArray::get(array, entries), kernel_.name + "_table", nullptr,
      llvm::GlobalValue::NotThreadLocal, /*AddressSpace=*/4);
  auto count = static_cast<int>(entries.size());
  int64_t offset = shared_.keep(count * (bit_width(dtype) + 7) / 8);
  for (int first = 0; first < count; first += threads_) {
    Value* entry = plus(thread_, first);
    Value* present = first + threads_ <= count ? nullptr : ir_.CreateICmpULT(entry, number(count));
    when(present, [&] {
      Value* pointer = ir_.CreateGEP(element, constant, entry);
      Value* loaded = ir_.CreateLoad(element, pointer);
      ir_.CreateStore(loaded, shared_element(dtype, offset, entry));
    });
  }
  return offset;
}

llvm::Value* GpuEmitter::number(int64_t value) {
  return ir_.getInt32(static_cast<uint32_t>(value));
}

llvm::Value* GpuEmitter::times(Value* a, int64_t b) {
  if (b == 1 || is_constant(a, 0)) return a;
  return ir_.CreateMul(a, number(b), "", /*HasNUW=*/true, /*HasNSW=*/true);
}

llvm::Value* GpuEmitter::plus(Value* a, Value* b) {
  if (is_constant(a, 0)) return b;
  if (is_constant(b, 0)) return a;
  return ir_.CreateAdd(a, b, "", /*HasNUW=*/true, /*HasNSW=*/true);
}

llvm::Value* GpuEmitter::plus(Value* a, int64_t b) { return plus(a, number(b)); }

llvm::Value* GpuEmitter::both(Value* a, Value* b) {
  if (!a || !b) return a ? a : b;
  return ir_.CreateAnd(a, b);
}

// Not for code with barriers: threads may differ in the condition.
void GpuEmitter::when(Value* condition, const std::function<void()>& inside) {
  if (!condition) return inside();
  auto& context = module_.getContext();
  auto* then = llvm::BasicBlock::Create(context, "when", function_);
  auto* after = llvm::BasicBlock::Create(context, "after", function_);
  ir_.CreateCondBr(condition, then, after);
  ir_.SetInsertPoint(then);
  inside();
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
}

GpuEmitter::Tile GpuEmitter::counted_loop(int count, Tile carried,
                                          const std::function<Tile(Value*, const Tile&)>& body,
                                          bool rolled) {
  if (count == 1) return body(number(0), carried);
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  auto* inside = llvm::BasicBlock::Create(module_.getContext(), "steps", function_);
  auto* after = llvm::BasicBlock::Create(module_.getContext(), "end_steps", function_);
  ir_.CreateBr(inside);
  ir_.SetInsertPoint(inside);
  llvm::PHINode* counter = ir_.CreatePHI(ir_.getInt32Ty(), 2);
  counter->addIncoming(number(0), before);
  std::vector<llvm::PHINode*> phis;
  for (Value*& value : carried) {
    phis.push_back(ir_.CreatePHI(value->getType(), 2));
    phis.back()->addIncoming(value, before);
    value = phis.back();
  }
  Tile out = body(counter, carried);
  Value* next = plus(counter, 1);
  counter->addIncoming(next, ir_.GetInsertBlock());
  for (size_t i = 0; i < phis.size(); ++i) phis[i]->addIncoming(out[i], ir_.GetInsertBlock());
  auto* back = ir_.CreateCondBr(ir_.CreateICmpULT(next, number(count)), inside, after);
  if (rolled) {
    auto& context = module_.getContext();
    llvm::Metadata* word = llvm::MDString::get(context, "llvm.loop.unroll.disable");
    auto* loop = llvm::MDNode::getDistinct(context, {nullptr, llvm::MDNode::get(context, word)});
    loop->replaceOperandWith(0, loop);
    back->setMetadata(llvm::LLVMContext::MD_loop, loop);
  }
  ir_.SetInsertPoint(after);
  return out;
}

// The same arithmetic as Layout::element_of.
GpuEmitter::Place GpuEmitter::place(const Layout& layout, int reg, const Type& type) {
  if (layout.kind == Layout::Kind::kUniform) return {number(0), number(0), nullptr};
  if (layout.kind == Layout::Kind::kDealt) return dealt_place(layout, reg);
  if (layout.is_bits()) return bits_place(layout, reg);
  bool has_rows = layout.kind != Layout::Kind::kColumns;
  bool has_columns = layout.kind != Layout::Kind::kRows;
  int fragment = reg / 2, half = reg % 2, odd = reg % 2;
  int fragment_m = fragment, fragment_n = fragment;
  if (layout.is_mma()) {
    fragment = reg / 4;
    half = reg % 4 / 2;
    fragment_m = fragment / layout.fragments_n();
    fragment_n = fragment % layout.fragments_n();
  }
  Place out{number(0), number(0), nullptr};
  if (has_rows) {
    Value* warp = ir_.CreateURem(warp_, number(layout.warps_m));
    Value* row = plus(times(warp, layout.fragments_m() * 16), ir_.CreateLShr(lane_, 2));
    out.row = plus(row, fragment_m * 16 + half * 8);
    if (layout.rows % 16 != 0) out.live = ir_.CreateICmpULT(out.row, number(layout.rows));
  }
  if (has_columns) {
    Value* warp =
        ir_.CreateURem(ir_.CreateUDiv(warp_, number(layout.warps_m)), number(layout.warps_n));
    Value* pair = times(ir_.CreateAnd(lane_, 3), 2);
    Value* column = plus(times(warp, layout.fragments_n() * 8), pair);
    out.column = plus(column, fragment_n * 8 + odd);
    if (layout.columns % 8 != 0) {
      out.live = both(out.live, ir_.CreateICmpULT(out.column, number(layout.columns)));
    }
  }
  if (layout.kind == Layout::Kind::kRows && type.shape.size() == 1) std::swap(out.row, out.column);
  return out;
}

GpuEmitter::Place GpuEmitter::dealt_place(const Layout& layout, int reg) {
  int64_t elements = layout.elements(), wave = int64_t{threads_} * layout.run;
  int columns = layout.columns, chunk = reg / layout.run, in_run = reg % layout.run;
  auto split = [&](Value* element) -> std::pair<Value*, Value*> {
    if (layout.rows == 1) return {number(0), element};
    if (columns == 1) return {element, number(0)};
    return {ir_.CreateUDiv(element, number(columns)), ir_.CreateURem(element, number(columns))};
  };
  if (elements < threads_) {
    auto [row, column] = split(ir_.CreateURem(thread_, number(elements)));
    return {row, column, nullptr};
  }
  Value* first = times(thread_, layout.run);
  Place out;
  if (wave % columns == 0 && columns % layout.run == 0) {  // every wave begins a row
    std::tie(out.row, out.column) = split(first);
    out.row = plus(out.row, chunk * (wave / columns));
    out.column = plus(out.column, in_run);
  } else if (columns % layout.run == 0) {
    std::tie(out.row, out.column) = split(plus(first, chunk * wave));
    out.column = plus(out.column, in_run);
  } else {
    std::tie(out.row, out.column) = split(plus(first, chunk * wave + in_run));
  }
  if ((chunk + 1) * wave > elements) {
    bool whole_runs = elements % layout.run == 0;
    Value* element = plus(first, chunk * wave + (whole_runs ? 0 : in_run));
    out.live = ir_.CreateICmpULT(element, number(elements));
  }
  return out;
}

// Neighbouring bits move together.
GpuEmitter::Place GpuEmitter::bits_place(const Layout& layout, int reg) {
  int64_t in_thread = layout.element_of(0, reg);
  int columns = std::countr_zero(static_cast<unsigned>(layout.columns));
  auto gather = [&](int from, int to) {
    Value* out = number(0);
    const std::vector<int>& bits = layout.thread_bits;
    for (size_t i = 0; i < bits.size();) {
      size_t end = i + 1;
      bool counts = bits[i] >= from && bits[i] < to;
      while (counts && end < bits.size() && bits[end] == bits[end - 1] + 1 && bits[end] < to) ++end;
      if (counts) {
        auto mask = ((int64_t{1} << (end - i)) - 1) << i;
        Value* part = ir_.CreateAnd(thread_, number(mask));
        int distance = bits[i] - from - static_cast<int>(i);
        part = distance >= 0 ? ir_.CreateShl(part, static_cast<uint64_t>(distance))
                             : ir_.CreateLShr(part, static_cast<uint64_t>(-distance));
        out = is_constant(out, 0) ? part : ir_.CreateOr(out, part);
      }
      i = end;
    }
    return out;
  };
  constexpr int kAll = 31;
  return {plus(gather(columns, kAll), in_thread >> columns),
          plus(gather(0, columns), in_thread & (layout.columns - 1)), nullptr};
}

llvm::Value* GpuEmitter::owner(const Layout& layout) {
  auto below = [&](Value* v, int64_t limit) { return ir_.CreateICmpULT(v, number(limit)); };
  auto zero = [&](Value* v) { return ir_.CreateICmpEQ(v, number(0)); };
  int warps = layout.warps_m * layout.warps_n;
  Value* first_warps = warps * kWarp < threads_ ? below(warp_, warps) : nullptr;
  switch (layout.kind) {
    case Layout::Kind::kUniform:
      return zero(thread_);
    case Layout::Kind::kDealt:
      return layout.elements() < threads_ ? below(thread_, layout.elements()) : nullptr;
    case Layout::Kind::kMma:
      return first_warps;
    case Layout::Kind::kRows:
      return both(first_warps, zero(ir_.CreateAnd(lane_, 3)));
    case Layout::Kind::kBits: {
      int64_t copies = 0;
      for (size_t i = 0; i < layout.thread_bits.size(); ++i) {
        if (layout.thread_bits[i] < 0) copies |= int64_t{1} << i;
      }
      return copies == 0 ? nullptr : zero(ir_.CreateAnd(thread_, number(copies)));
    }
    default:
      return both(both(first_warps, zero(ir_.CreateURem(warp_, number(layout.warps_m)))),
                  below(lane_, 4));
  }
}

void GpuEmitter::make_tile(const Operation& op) {
  const Type& result = type(op.results[0]);
  const Layout& layout = layouts_[op.results[0]];
  auto count = static_cast<size_t>(layout.registers());
  Tile& out = values_[op.results[0]];
  switch (op.op) {
    case Op::kConstant: {
      if (op.integers.empty()) {
        out = Tile(count, constant_element(result.dtype, op.number, op.integer));
        return;
      }
      if (tables_.contains(&op)) {
        for (int r = 0; r < layout.registers(); ++r) {
          Place at = place(layout, r, result);
          Value* entry = at.live ? ir_.CreateSelect(at.live, at.column, number(0)) : at.column;
          out.push_back(read_shared(result.dtype, tables_[&op], entry));
        }
        return;
      }
      for (int r = 0; r < layout.registers(); ++r) {  // few and short: permutations and the like
        Place at = place(layout, r, result);
        Value* found = nullptr;
        for (size_t i = 0; i < op.integers.size(); ++i) {
          Value* entry =
              constant_element(result.dtype, std::bit_cast<double>(op.integers[i]), op.integers[i]);
          Value* here = ir_.CreateICmpEQ(at.column, number(static_cast<int64_t>(i)));
          found = found ? ir_.CreateSelect(here, entry, found) : entry;
        }
        out.push_back(found);
      }
      return;
    }
    case Op::kSplat:
      out = Tile(count, single(op.operands[0]));
      uniform_.insert(out[0]);
      return;
    case Op::kFromIndex:
      out = {cast(DType::kI64, result.dtype, single(op.operands[0]))};
      return;
    default:  // kIota
      for (int r = 0; r < layout.registers(); ++r) {
        Place at = place(layout, r, result);
        bool along_last = op.axis + 1 == static_cast<int>(result.shape.size());
        out.push_back(cast(DType::kI32, result.dtype, along_last ? at.column : at.row));
      }
  }
}

bool GpuEmitter::is_uniform(Value* value) const {
  return llvm::isa<llvm::Constant>(value) || uniform_.contains(value);
}

void GpuEmitter::elementwise(const Operation& op) {
  if (folded_.contains(&op)) return;
  if (rescales_running(op)) return rescale_running(op);
  // Unexpanded only where every use is a cast to f16, which dequantises the codes itself.
  if (op.fn == Fn::kDequantizeF8E4M3FN) return;
  const Layout& layout = layouts_[op.results[0]];
  if (is_move(kernel_, op)) {
    Tile parts = bitcast_narrower(op);
    values_[op.results[0]] = std::move(parts);
    return;
  }
  const Operation* codes = dequantized(op);
  std::vector<Tile> operands;
  for (ValueId id : codes ? codes->operands : op.operands)
    operands.push_back(in_layout(id, layout));
  bool one_for_all = std::ranges::all_of(operands, [](const Tile& operand) {
    return std::ranges::all_of(operand, [&](Value* v) { return v == operand[0]; });
  });
  if (is_paired(op) && operands[0].size() % 2 == 0 && !one_for_all) {
    values_[op.results[0]] = paired(op, operands);
    return;
  }
  Tile out;
  for (size_t r = 0; r < operands[0].size(); ++r) {
    std::vector<Value*> at;
    for (const Tile& operand : operands) at.push_back(operand[r]);
    bool repeats = r > 0;  // splats stay one value
    for (const Tile& operand : operands) repeats = repeats && operand[r] == operand[r - 1];
    out.push_back(repeats ? out.back() : single_operation(op, at));
    if (std::ranges::all_of(at, [&](Value* v) { return is_uniform(v); })) {
      uniform_.insert(out.back());
    }
  }
  values_[op.results[0]] = std::move(out);
}

llvm::Value* GpuEmitter::real_function(Fn fn, std::span<Value* const> arguments) {
  if (fn == Fn::kExp2 && !arguments[0]->getType()->isDoubleTy()) {
    return ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_ex2_approx_f, {}, {arguments[0]});
  }
  throw InternalError(
      fmt::format("kernel @{}: {} reached the GPU emitter unexpanded", kernel_.name, name(fn)));
}

llvm::Value* GpuEmitter::float_remainder(Value* a, Value* b) {
  return ir_.CreateCall(remainder_function(module_, a->getType()), {a, b});
}

// The assembler sees no more that the masks of two words complement each other, and would rather
// name two constants than keep one of them: it would take an instruction for each.
llvm::Value* GpuEmitter::join_bits(Value* a, Value* b) {
  using namespace llvm::PatternMatch;
  Value *first = nullptr, *second = nullptr;
  const llvm::APInt *mask = nullptr, *rest = nullptr, *bits = nullptr;
  if (!a->getType()->isIntegerTy(32) || !match(a, m_And(m_Value(first), m_APInt(mask)))) {
    return KernelEmitter::join_bits(a, b);
  }
  if (match(b, m_APInt(bits)) && (*bits & *mask).isZero()) second = b;
  bool merges = second || (match(b, m_And(m_Value(second), m_APInt(rest))) && *mask == ~*rest);
  if (!merges) return KernelEmitter::join_bits(a, b);
  return instruct(ptx::Instruction::kMergeBits,
                  {first, second, llvm::ConstantInt::get(a->getType(), *mask)});
}

bool GpuEmitter::divides_inline(Value* divisor) const {
  return specialised_ && has_async_products_ && !llvm::isa<llvm::Constant>(divisor);
}

// In 32 bits where both fit, as they always do. Machine code for 64 calls a function, and a kernel
// that might call somebody else's runs its asynchronous products one after the other. Others have
// no registers to spare for two ways.
llvm::Value* GpuEmitter::quotient(Value* a, Value* b) {
  if (!divides_inline(b)) return KernelEmitter::quotient(a, b);
  auto& context = module_.getContext();
  auto* is_short = llvm::BasicBlock::Create(context, "short_division", function_);
  auto* is_long = llvm::BasicBlock::Create(context, "long_division", function_);
  auto* after = llvm::BasicBlock::Create(context, "divided", function_);
  Value* high = ir_.CreateLShr(ir_.CreateOr(a, b), 32);
  ir_.CreateCondBr(ir_.CreateICmpEQ(high, index_constant(0)), is_short, is_long);
  ir_.SetInsertPoint(is_short);
  auto narrow = [&](Value* x) { return ir_.CreateTrunc(x, ir_.getInt32Ty()); };
  Value* of_short = as_index(ir_.CreateUDiv(narrow(a), narrow(b)));
  ir_.CreateBr(after);
  ir_.SetInsertPoint(is_long);
  Value* of_long = long_quotient(a, b);
  llvm::BasicBlock* end_of_long = ir_.GetInsertBlock();
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
  llvm::PHINode* result = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  result->addIncoming(of_short, is_short);
  result->addIncoming(of_long, end_of_long);
  return result;
}

// Bit by bit.
llvm::Value* GpuEmitter::long_quotient(Value* a, Value* b) {
  Tile zero = {index_constant(0), index_constant(0)};
  return counted_loop(
      64, zero,
      [&](Value* counter, const Tile& carried) -> Tile {
        Value* bit = ir_.CreateSub(index_constant(63), as_index(counter));
        Value* next = ir_.CreateAnd(ir_.CreateLShr(a, bit), 1);
        Value* rest = ir_.CreateOr(ir_.CreateShl(carried[1], 1), next);
        Value* fits = ir_.CreateICmpUGE(rest, b);
        Value* shifted = ir_.CreateShl(carried[0], 1);
        return {ir_.CreateOr(shifted, ir_.CreateZExt(fits, ir_.getInt64Ty())),
                ir_.CreateSelect(fits, ir_.CreateSub(rest, b), rest)};
      },
      /*rolled=*/true)[0];
}

llvm::Value* GpuEmitter::remainder(Value* a, Value* b) {
  if (!divides_inline(b)) return KernelEmitter::remainder(a, b);
  return ir_.CreateSub(a, ir_.CreateMul(quotient(a, b), b));
}

// The nearest float would cost a branch per element.
llvm::Value* GpuEmitter::reciprocal(Value* x) {
  if (!x->getType()->isFloatTy()) return KernelEmitter::reciprocal(x);
  return ptx::emit(ir_, ptx::Instruction::kReciprocal, std::array{x});
}

llvm::Value* GpuEmitter::f32_to_bf16(Value* x) {
  Value* rounded = ir_.CreateFPTrunc(x, ir_.getBFloatTy());
  return ir_.CreateBitCast(rounded, ir_.getInt16Ty());
}

}  // namespace tenon::codegen
