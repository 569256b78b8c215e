// Registers on demand. What is only computed for an operand of a product is not emitted where
// it stands, but register by register just before the product's step that reads it, so that the
// arithmetic for one step runs while the step before multiplies. 16-bit arithmetic goes in pairs.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/PatternMatch.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "codegen/llvm/emit_gpu.h"
#include "codegen/llvm/ptx.h"
#include "codegen/tile/op_info.h"

namespace tenon::codegen {

namespace {

bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// The wider value that this is some bits of, and where; or itself.
std::pair<llvm::Value*, uint64_t> part_behind(llvm::Value* value) {
  using namespace llvm::PatternMatch;
  llvm::Value* whole = nullptr;
  uint64_t at = 0;
  if (match(value, m_Trunc(m_LShr(m_Value(whole), m_ConstantInt(at))))) return {whole, at};
  if (match(value, m_Trunc(m_Value(whole)))) return {whole, 0};
  return {value, 0};
}

bool is_splat(const Operation* op) {
  return op && ((op->op == Op::kConstant && op->integers.empty()) || op->op == Op::kSplat);
}

}  // namespace

void GpuEmitter::plan_lazy(const Region& region) {
  const Operation* first = region.operations.data();
  auto stands_here = [&](const Operation* op) {
    return op >= first && op < first + region.operations.size();
  };
  for (size_t i = region.operations.size(); i-- > 0;) {
    const Operation& op = region.operations[i];
    for (const Region& inner : op.regions) plan_lazy(inner);
    if (op.results.size() != 1 || users_[op.results[0]].empty() || !computes_in_place(op)) continue;
    bool all = std::ranges::all_of(users_[op.results[0]], [&](const auto& user) {
      auto [by, operand] = user;
      if (!stands_here(by)) return false;
      if (lazy_.contains(by)) return true;
      auto dot = ring_dot(kernel_, definitions_, *by, threads_);
      return dot && ((!dot->left && operand == 1) || (!dot->right && operand == 2));
    });
    if (all) lazy_.insert(&op);
  }
}

// Every register of the result depends on registers of the same thread.
bool GpuEmitter::computes_in_place(const Operation& op) {
  if (is_move(kernel_, op)) {
    auto origins = registers_of_move(kernel_, op, layouts_);
    if (origins) origins_[&op] = *origins;
    return origins.has_value();
  }
  if (!is_elementwise(op.op) || layouts_[op.results[0]].is_splat()) return false;
  return std::ranges::all_of(op.operands, [&](ValueId id) {
    return layouts_[id] == layouts_[op.results[0]] || layouts_[id].is_splat() ||
           is_splat(definitions_[id]);
  });
}

void GpuEmitter::forget_lazy() {
  elements_.clear();
  words_.clear();
}

const Operation* GpuEmitter::lazy_definition(ValueId id) const {
  const Operation* op = definitions_[id];
  return op && lazy_.contains(op) ? op : nullptr;
}

// An operation whose registers come in pairs.
bool GpuEmitter::is_paired(const Operation& op) const {
  if (op.op == Op::kBinary) {
    return is_half(type(op.operands[0]).dtype) &&
           (op.fn == Fn::kAdd || op.fn == Fn::kSub || op.fn == Fn::kMul);
  }
  if (op.op != Op::kCast || !is_half(type(op.results[0]).dtype)) return false;
  return type(op.operands[0]).dtype == DType::kF32;
}

// A cast to f16 of dequantised f8e4m3fn is one instruction, straight from the codes.
const Operation* GpuEmitter::dequantized(const Operation& cast) const {
  const Operation* from = cast.op == Op::kCast ? definitions_[cast.operands[0]] : nullptr;
  return from && from->op == Op::kUnary && from->fn == Fn::kDequantizeF8E4M3FN ? from : nullptr;
}

llvm::Type* GpuEmitter::pair_type(DType dtype) {
  llvm::Type* element = dtype == DType::kF16 ? ir_.getHalfTy() : ir_.getBFloatTy();
  return llvm::FixedVectorType::get(element, 2);
}

llvm::Value* GpuEmitter::as_word(Value* pair) { return ir_.CreateBitCast(pair, ir_.getInt32Ty()); }

llvm::Value* GpuEmitter::half_of(Value* word, int which) {
  auto* halves = llvm::FixedVectorType::get(ir_.getInt16Ty(), 2);
  return ir_.CreateExtractElement(ir_.CreateBitCast(word, halves), static_cast<uint64_t>(which));
}

llvm::Value* GpuEmitter::pack_halves(Value* low, Value* high) {
  auto* halves = llvm::FixedVectorType::get(ir_.getInt16Ty(), 2);
  // Both halves of one word are that word.
  using namespace llvm::PatternMatch;
  Value *a = nullptr, *b = nullptr;
  if (match(low, m_ExtractElt(m_BitCast(m_Value(a)), m_ZeroInt())) &&
      match(high, m_ExtractElt(m_BitCast(m_Value(b)), m_One())) && a == b) {
    return as_word(a);
  }
  auto [word, at] = part_behind(low);
  auto [next_word, next_at] = part_behind(high);
  if (word == next_word && at == 0 && next_at == 16 && word->getType()->isIntegerTy(32)) {
    return word;
  }
  Value* pair = ir_.CreateInsertElement(llvm::PoisonValue::get(halves), low, uint64_t{0});
  return as_word(ir_.CreateInsertElement(pair, high, uint64_t{1}));
}

llvm::Value* GpuEmitter::pair_arithmetic(const Operation& op, Value* a, Value* b) {
  llvm::Type* pair = pair_type(type(op.operands[0]).dtype);
  Value *x = ir_.CreateBitCast(a, pair), *y = ir_.CreateBitCast(b, pair);
  Value* out = op.fn == Fn::kAdd   ? ir_.CreateFAdd(x, y)
               : op.fn == Fn::kSub ? ir_.CreateFSub(x, y)
                                   : ir_.CreateFMul(x, y);
  return as_word(out);
}

llvm::Value* GpuEmitter::narrow_pair(DType to, Value* low, Value* high) {
  auto id =
      to == DType::kF16 ? llvm::Intrinsic::nvvm_ff2f16x2_rn : llvm::Intrinsic::nvvm_ff2bf16x2_rn;
  return as_word(ir_.CreateIntrinsic(id, {}, {high, low}));
}

llvm::Value* GpuEmitter::dequantize_pair(Value* low, Value* high) {
  llvm::Type* half = ir_.getInt16Ty();
  auto [word, at] = part_behind(low);
  auto [next_word, next_at] = part_behind(high);
  Value* pair = nullptr;
  if (word == next_word && next_at == at + 8) {  // neighbours already
    pair = ir_.CreateTrunc(ir_.CreateLShr(word, at), half);
  } else {
    pair = ir_.CreateOr(ir_.CreateZExt(low, half), ir_.CreateShl(ir_.CreateZExt(high, half), 8));
  }
  return instruct(ptx::Instruction::kDequantizeE4M3, {pair});
}

// Registers r and r + 1 of a 16-bit tile, r even.
llvm::Value* GpuEmitter::word(ValueId id, int r) {
  const Operation* op = lazy_definition(id);
  if (!op) {
    const Tile& in = tile(id);
    return pack_halves(in[static_cast<size_t>(r)], in[static_cast<size_t>(r) + 1]);
  }
  Value*& made = words_[{id, r}];
  if (!made) {
    Value* value = lazy_word(*op, r);
    words_[{id, r}] = value;
    return value;
  }
  return made;
}

llvm::Value* GpuEmitter::lazy_word(const Operation& op, int r) {
  auto packed = [&] {
    return pack_halves(element(op.results[0], r), element(op.results[0], r + 1));
  };
  if (const Operation* codes = dequantized(op)) {
    return dequantize_pair(element(codes->operands[0], r), element(codes->operands[0], r + 1));
  }
  if (is_paired(op)) {
    if (op.op == Op::kCast) {
      return narrow_pair(type(op.results[0]).dtype, element(op.operands[0], r),
                         element(op.operands[0], r + 1));
    }
    return pair_arithmetic(op, word_operand(op, 0, r), word_operand(op, 1, r));
  }
  if (!is_move(kernel_, op)) return packed();
  const RegisterOrigin &low = origins_[&op][static_cast<size_t>(r)],
                       &high = origins_[&op][static_cast<size_t>(r) + 1];
  ValueId from = op.operands[static_cast<size_t>(low.operand)];
  if (low.operand != high.operand) return packed();
  if (op.op == Op::kBitcast) {
    bool whole =
        low.reg == high.reg && low.part == 0 && high.part == 1 && bit_width(type(from).dtype) == 32;
    return whole ? ir_.CreateBitCast(element(from, low.reg), ir_.getInt32Ty()) : packed();
  }
  if (low.reg % 2 == 0 && high.reg == low.reg + 1) return word(from, low.reg);
  if (low.reg != high.reg || layouts_[from].registers() < 2) return packed();
  // One half in both places, which multiplications choose at no cost.
  int half = low.reg % 2;
  Value* both = ir_.CreateBitCast(word(from, low.reg - half), pair_type(DType::kF16));
  return as_word(ir_.CreateShuffleVector(both, std::array{half, half}));
}

llvm::Value* GpuEmitter::word_operand(const Operation& op, size_t operand, int r) {
  ValueId id = op.operands[operand];
  if (layouts_[id] == layouts_[op.results[0]]) return word(id, r);
  return pack_halves(tile(id)[0], tile(id)[0]);  // a splat
}

llvm::Value* GpuEmitter::element(ValueId id, int r) {
  const Operation* op = lazy_definition(id);
  if (!op) return tile(id)[static_cast<size_t>(r)];
  auto found = elements_.find({id, r});
  if (found != elements_.end()) return found->second;
  Value* value = lazy_element(*op, r);
  elements_[{id, r}] = value;
  return value;
}

llvm::Value* GpuEmitter::lazy_element(const Operation& op, int r) {
  ValueId id = op.results[0];
  bool pairs = is_paired(op) && layouts_[id].registers() >= 2;
  if (pairs) return half_of(word(id, r & ~1), r & 1);
  if (is_move(kernel_, op)) {
    const RegisterOrigin& origin = origins_[&op][static_cast<size_t>(r)];
    Value* from = element(op.operands[static_cast<size_t>(origin.operand)], origin.reg);
    return op.op == Op::kBitcast ? part_of(op, from, origin.part) : from;
  }
  std::vector<Value*> operands;
  for (ValueId operand : op.operands) {
    bool splat = layouts_[operand] != layouts_[id];
    operands.push_back(splat ? tile(operand)[0] : element(operand, r));
  }
  if (const Operation* codes = dequantized(op)) operands[0] = element(codes->operands[0], r);
  return single_operation(op, operands);
}

// Part of a wider element, as a register of the narrower type.
llvm::Value* GpuEmitter::part_of(const Operation& bitcast, Value* whole, int part) {
  DType to = type(bitcast.results[0]).dtype;
  auto width = static_cast<unsigned>(bit_width(to));
  unsigned bits = whole->getType()->getScalarSizeInBits();
  Value* integer = ir_.CreateBitCast(whole, ir_.getIntNTy(bits));
  if (part > 0) integer = ir_.CreateLShr(integer, static_cast<uint64_t>(part) * width);
  return ir_.CreateBitCast(ir_.CreateTrunc(integer, ir_.getIntNTy(width)), element_type(to));
}

// Weights of a softmax are rounded to 16 bits and summed: what is less than 2^-126 may be nothing,
// and keeping it would take three more instructions.
bool GpuEmitter::is_weight(const Operation& op) const {
  if (op.op != Op::kUnary || op.fn != Fn::kExp2) return false;
  bool rounded = false, summed = false;
  for (const auto& [user, operand] : users_[op.results[0]]) {
    bool sums = user->op == Op::kReduce && user->fn == Fn::kAdd;
    bool rounds = user->op == Op::kCast && is_half(type(user->results[0]).dtype);
    if (!sums && !rounds) return false;
    rounded |= rounds;
    summed |= sums;
  }
  return rounded && summed;
}

// One element of anything elementwise, also of what comes in pairs elsewhere.
llvm::Value* GpuEmitter::single_operation(const Operation& op, std::span<Value* const> operands) {
  if (is_weight(op)) {
    return ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_ex2_approx_ftz_f, {}, {operands[0]});
  }
  if (dequantized(op)) return half_of(dequantize_pair(operands[0], ir_.getInt8(0)), 0);
  if (op.op == Op::kBinary && is_paired(op)) {
    Value* zero = ir_.getInt16(0);
    return half_of(
        pair_arithmetic(op, pack_halves(operands[0], zero), pack_halves(operands[1], zero)), 0);
  }
  return element_operation(op, operands);
}

// The registers of an eager operation, two at a time.
GpuEmitter::Tile GpuEmitter::paired(const Operation& op, const std::vector<Tile>& operands) {
  Tile out;
  for (size_t r = 0; r + 1 < operands[0].size(); r += 2) {
    auto packed = [&](size_t i) { return pack_halves(operands[i][r], operands[i][r + 1]); };
    Value* word = nullptr;
    if (dequantized(op)) {
      word = dequantize_pair(operands[0][r], operands[0][r + 1]);
    } else if (op.op == Op::kCast) {
      word = narrow_pair(type(op.results[0]).dtype, operands[0][r], operands[0][r + 1]);
    } else {
      word = pair_arithmetic(op, packed(0), packed(1));
    }
    out.push_back(half_of(word, 0));
    out.push_back(half_of(word, 1));
  }
  return out;
}

}  // namespace tenon::codegen
