// One operation on one piece. f16 and bf16 never get here: expand_math computes them in f32.
#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>

#include <array>

#include "base/convert.h"
#include "base/error.h"
#include "codegen/llvm/emit_kernel.h"

namespace tenon::codegen {

llvm::Type* KernelEmitter::element_type(DType dtype) const {
  switch (dtype) {
    case DType::kBool:
      return ir_.getInt1Ty();
    case DType::kF32:
      return ir_.getFloatTy();
    case DType::kF64:
      return ir_.getDoubleTy();
    default:
      return ir_.getIntNTy(static_cast<unsigned>(bit_width(dtype)));
  }
}

llvm::Type* KernelEmitter::memory_type(DType dtype) const {
  return dtype == DType::kBool ? ir_.getInt8Ty() : element_type(dtype);
}

llvm::Value* KernelEmitter::from_memory(DType dtype, Value* loaded) {
  if (dtype != DType::kBool) return loaded;
  return ir_.CreateICmpNE(loaded, llvm::Constant::getNullValue(loaded->getType()));
}

llvm::Value* KernelEmitter::to_memory(DType dtype, Value* value) {
  if (dtype != DType::kBool) return value;
  return ir_.CreateZExt(value, value->getType()->getWithNewType(ir_.getInt8Ty()));
}

bool KernelEmitter::is_constant(Value* value, int64_t expected) const {
  auto* known = llvm::dyn_cast<llvm::ConstantInt>(value);
  return known && known->getSExtValue() == expected;
}

llvm::Value* KernelEmitter::index_constant(int64_t value) {
  return ir_.getInt64(static_cast<uint64_t>(value));
}

llvm::Value* KernelEmitter::constant_element(DType dtype, double number, int64_t integer) {
  switch (dtype) {
    case DType::kF32:
      return llvm::ConstantFP::get(ir_.getContext(), llvm::APFloat(static_cast<float>(number)));
    case DType::kF64:
      return llvm::ConstantFP::get(ir_.getContext(), llvm::APFloat(number));
    case DType::kF16:
    case DType::kBF16:
      return ir_.getInt16(static_cast<uint16_t>(encode(dtype, number, {.saturate = false})));
    case DType::kBool:
      return ir_.getInt1(integer != 0);
    default:
      return llvm::ConstantInt::get(element_type(dtype), static_cast<uint64_t>(integer));
  }
}

llvm::Value* KernelEmitter::element_operation(const Operation& op,
                                              std::span<Value* const> operands) {
  DType dtype = type(op.operands[0]).dtype, to = type(op.results[0]).dtype;
  auto at = [&](size_t i) { return operands[i]; };
  switch (op.op) {
    case Op::kUnary:
      return unary(op.fn, dtype, at(0));
    case Op::kBinary:
      return binary(op.fn, dtype, at(0), at(1));
    case Op::kTernary:
      return ir_.CreateIntrinsic(llvm::Intrinsic::fma, {at(0)->getType()}, {at(0), at(1), at(2)});
    case Op::kCompare:
      return compare(op.fn, dtype, at(0), at(1));
    case Op::kSelect:
      return ir_.CreateSelect(at(0), at(1), at(2));
    case Op::kCast:
      return cast(dtype, to, at(0));
    default:  // kBitcast; registers hold f16 and bf16 as their bits already
      return ir_.CreateBitCast(at(0), at(0)->getType()->getWithNewType(element_type(to)));
  }
}

llvm::Value* KernelEmitter::float_remainder(Value* a, Value* b) { return ir_.CreateFRem(a, b); }

llvm::Value* KernelEmitter::reciprocal(Value* x) {
  return ir_.CreateFDiv(llvm::ConstantFP::get(x->getType(), 1.0), x);
}

llvm::Value* KernelEmitter::unary(Fn fn, DType dtype, Value* x) {
  bool real = is_floating(dtype);
  llvm::Type* type = x->getType();
  auto call = [&](llvm::Intrinsic::ID id) { return ir_.CreateUnaryIntrinsic(id, x); };
  switch (fn) {
    case Fn::kNeg:
      return real ? ir_.CreateFNeg(x) : ir_.CreateNeg(x);
    case Fn::kNot:
      return ir_.CreateNot(x);
    case Fn::kAbs:
      if (real) return call(llvm::Intrinsic::fabs);
      if (!is_signed(dtype)) return x;
      return ir_.CreateIntrinsic(llvm::Intrinsic::abs, {type}, {x, ir_.getFalse()});
    case Fn::kReciprocal:
      return reciprocal(x);
    case Fn::kSqrt:
      return call(llvm::Intrinsic::sqrt);
    case Fn::kFloor:
      return call(llvm::Intrinsic::floor);
    case Fn::kCeil:
      return call(llvm::Intrinsic::ceil);
    case Fn::kTrunc:
      return call(llvm::Intrinsic::trunc);
    case Fn::kRound:
      return call(llvm::Intrinsic::roundeven);
    case Fn::kIsNan:
      return ir_.CreateFCmpUNO(x, x);
    case Fn::kIsInf:
      return ir_.CreateFCmpOEQ(call(llvm::Intrinsic::fabs), llvm::ConstantFP::getInfinity(type));
    default:
      return real_function(fn, std::array{x});
  }
}

llvm::Value* KernelEmitter::binary(Fn fn, DType dtype, Value* a, Value* b) {
  bool real = is_floating(dtype);
  switch (fn) {
    case Fn::kAdd:
      return real ? ir_.CreateFAdd(a, b) : ir_.CreateAdd(a, b);
    case Fn::kSub:
      return real ? ir_.CreateFSub(a, b) : ir_.CreateSub(a, b);
    case Fn::kMul:
      return real ? ir_.CreateFMul(a, b) : ir_.CreateMul(a, b);
    case Fn::kDiv:
      return real ? ir_.CreateFDiv(a, b) : divide(fn, dtype, a, b);
    case Fn::kRem:
      return real ? float_remainder(a, b) : divide(fn, dtype, a, b);
    case Fn::kMin:
    case Fn::kMax:
      return extremum(fn, dtype, a, b);
    case Fn::kAnd:
      return ir_.CreateAnd(a, b);
    case Fn::kOr:
      return join_bits(a, b);
    case Fn::kXor:
      return ir_.CreateXor(a, b);
    case Fn::kShiftLeft:
    case Fn::kShiftRight:
      return shift(fn, dtype, a, b);
    default:
      return real_function(fn, std::array{a, b});
  }
}

llvm::Value* KernelEmitter::join_bits(Value* a, Value* b) { return ir_.CreateOr(a, b); }

// Never traps: x / 0 = x rem 0 = 0, and the smallest number over -1 wraps.
llvm::Value* KernelEmitter::divide(Fn fn, DType dtype, Value* a, Value* b) {
  bool with_sign = is_signed(dtype);
  llvm::Type* type = a->getType();
  Value* zero = llvm::Constant::getNullValue(type);
  Value* by_zero = ir_.CreateICmpEQ(b, zero);
  Value* unsafe = by_zero;
  if (with_sign) {
    auto bits = static_cast<unsigned>(bit_width(dtype));
    Value* smallest = llvm::ConstantInt::get(type, llvm::APInt::getSignedMinValue(bits));
    Value* overflows = ir_.CreateAnd(ir_.CreateICmpEQ(a, smallest),
                                     ir_.CreateICmpEQ(b, llvm::Constant::getAllOnesValue(type)));
    unsafe = ir_.CreateOr(by_zero, overflows);
  }
  // Over 1 the quotient is `a` and the remainder 0: right for overflow.
  Value* divisor = ir_.CreateSelect(unsafe, llvm::ConstantInt::get(type, 1), b);
  if (fn == Fn::kRem) return with_sign ? ir_.CreateSRem(a, divisor) : ir_.CreateURem(a, divisor);
  Value* quotient = with_sign ? ir_.CreateSDiv(a, divisor) : ir_.CreateUDiv(a, divisor);
  return ir_.CreateSelect(by_zero, zero, quotient);
}

// Shifting by the width or more gives 0 (LLVM leaves it undefined).
llvm::Value* KernelEmitter::shift(Fn fn, DType dtype, Value* a, Value* amount) {
  auto shifted = [&] {
    if (fn == Fn::kShiftLeft) return ir_.CreateShl(a, amount);
    return is_signed(dtype) ? ir_.CreateAShr(a, amount) : ir_.CreateLShr(a, amount);
  };
  Value* width = llvm::ConstantInt::get(a->getType(), static_cast<uint64_t>(bit_width(dtype)));
  Value* in_range = ir_.CreateICmpULT(amount, width);
  if (auto* known = llvm::dyn_cast<llvm::Constant>(in_range); known && known->isAllOnesValue()) {
    return shifted();
  }
  return ir_.CreateSelect(in_range, ir_.CreateFreeze(shifted()),
                          llvm::Constant::getNullValue(a->getType()));
}

llvm::Value* KernelEmitter::extremum(Fn fn, DType dtype, Value* a, Value* b) {
  bool is_max = fn == Fn::kMax;
  if (!is_floating(dtype)) {
    using namespace llvm::Intrinsic;
    if (is_signed(dtype)) return ir_.CreateBinaryIntrinsic(is_max ? smax : smin, a, b);
    return ir_.CreateBinaryIntrinsic(is_max ? umax : umin, a, b);
  }
  // The intrinsic, not selects: LLVM 19 turns selects for max(|x|, 0) into max(x, 0). Which zero
  // wins is nobody's promise, and x86 needs three instructions then.
  llvm::FastMathFlags flags;
  flags.setNoSignedZeros();
  llvm::IRBuilderBase::FastMathFlagGuard guard(ir_);
  ir_.setFastMathFlags(flags);
  return ir_.CreateBinaryIntrinsic(is_max ? llvm::Intrinsic::maximum : llvm::Intrinsic::minimum, a,
                                   b);
}

llvm::Value* KernelEmitter::compare(Fn fn, DType dtype, Value* a, Value* b) {
  using P = llvm::CmpInst::Predicate;
  struct Row {
    Fn fn;
    P real, with_sign, without_sign;
  };
  static constexpr Row kRows[] = {
      {Fn::kEqual, P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ},
      {Fn::kNotEqual, P::FCMP_UNE, P::ICMP_NE, P::ICMP_NE},
      {Fn::kLess, P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT},
      {Fn::kLessEqual, P::FCMP_OLE, P::ICMP_SLE, P::ICMP_ULE},
      {Fn::kGreater, P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT},
      {Fn::kGreaterEqual, P::FCMP_OGE, P::ICMP_SGE, P::ICMP_UGE},
  };
  for (const Row& row : kRows) {
    if (row.fn != fn) continue;
    if (is_floating(dtype)) return ir_.CreateFCmp(row.real, a, b);
    return ir_.CreateICmp(is_signed(dtype) ? row.with_sign : row.without_sign, a, b);
  }
  throw InternalError(fmt::format("{} is no comparison", name(fn)));
}

}  // namespace tenon::codegen
