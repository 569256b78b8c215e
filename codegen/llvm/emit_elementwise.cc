// One operation on every element. f16 and bf16 never get here: expand_math computes them in f32.
#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <array>
#include <cmath>

#include "base/error.h"
#include "codegen/llvm/emit_host.h"

namespace tenon::codegen {

namespace {

using Real1 = double (*)(double);
using Real2 = double (*)(double, double);

template <typename Function>
void* address(Function function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

std::span<const LibmFunction> libm_functions() {
  static const std::array kFunctions{
      LibmFunction{Fn::kExp, "exp", 1, address<Real1>(std::exp)},
      LibmFunction{Fn::kExp2, "exp2", 1, address<Real1>(std::exp2)},
      LibmFunction{Fn::kLog, "log", 1, address<Real1>(std::log)},
      LibmFunction{Fn::kLog2, "log2", 1, address<Real1>(std::log2)},
      LibmFunction{Fn::kSin, "sin", 1, address<Real1>(std::sin)},
      LibmFunction{Fn::kCos, "cos", 1, address<Real1>(std::cos)},
      LibmFunction{Fn::kTan, "tan", 1, address<Real1>(std::tan)},
      LibmFunction{Fn::kTanh, "tanh", 1, address<Real1>(std::tanh)},
      LibmFunction{Fn::kErf, "erf", 1, address<Real1>(std::erf)},
      LibmFunction{Fn::kAsin, "asin", 1, address<Real1>(std::asin)},
      LibmFunction{Fn::kAcos, "acos", 1, address<Real1>(std::acos)},
      LibmFunction{Fn::kAtan, "atan", 1, address<Real1>(std::atan)},
      LibmFunction{Fn::kSinh, "sinh", 1, address<Real1>(std::sinh)},
      LibmFunction{Fn::kCosh, "cosh", 1, address<Real1>(std::cosh)},
      LibmFunction{Fn::kAsinh, "asinh", 1, address<Real1>(std::asinh)},
      LibmFunction{Fn::kAcosh, "acosh", 1, address<Real1>(std::acosh)},
      LibmFunction{Fn::kAtanh, "atanh", 1, address<Real1>(std::atanh)},
      LibmFunction{Fn::kPow, "pow", 2, address<Real2>(std::pow)},
      LibmFunction{Fn::kAtan2, "atan2", 2, address<Real2>(std::atan2)},
      LibmFunction{Fn::kRem, "fmod", 2, address<Real2>(std::fmod)},
  };
  return kFunctions;
}

void HostEmitter::elementwise(const Operation& op) {
  DType dtype = type(op.operands[0]).dtype, to = type(op.results[0]).dtype;
  Tile out;
  for (size_t p = 0; p < tile(op.operands[0]).size(); ++p) {
    auto at = [&](size_t i) { return tile(op.operands[i])[p]; };
    auto compute = [&]() -> Value* {
      switch (op.op) {
        case Op::kUnary:
          return unary(op.fn, dtype, at(0));
        case Op::kBinary:
          return binary(op.fn, dtype, at(0), at(1));
        case Op::kTernary:
          return ir_.CreateIntrinsic(llvm::Intrinsic::fma, {at(0)->getType()},
                                     {at(0), at(1), at(2)});
        case Op::kCompare:
          return compare(op.fn, dtype, at(0), at(1));
        case Op::kSelect:
          return ir_.CreateSelect(at(0), at(1), at(2));
        case Op::kCast:
          return cast(dtype, to, at(0));
        default:  // kBitcast; registers hold f16 and bf16 as their bits already
          return ir_.CreateBitCast(at(0), at(0)->getType()->getWithNewType(element_type(to)));
      }
    };
    out.push_back(compute());
  }
  values_[op.results[0]] = std::move(out);
}

llvm::Value* HostEmitter::unary(Fn fn, DType dtype, Value* x) {
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
      return call_libm(fn, std::array{x});
  }
}

llvm::Value* HostEmitter::binary(Fn fn, DType dtype, Value* a, Value* b) {
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
      return real ? ir_.CreateFRem(a, b) : divide(fn, dtype, a, b);
    case Fn::kMin:
    case Fn::kMax:
      return extremum(fn, dtype, a, b);
    case Fn::kAnd:
      return ir_.CreateAnd(a, b);
    case Fn::kOr:
      return ir_.CreateOr(a, b);
    case Fn::kXor:
      return ir_.CreateXor(a, b);
    case Fn::kShiftLeft:
    case Fn::kShiftRight:
      return shift(fn, dtype, a, b);
    default:
      return call_libm(fn, std::array{a, b});
  }
}

// Never traps: x / 0 = x rem 0 = 0, and the smallest number over -1 wraps.
llvm::Value* HostEmitter::divide(Fn fn, DType dtype, Value* a, Value* b) {
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
llvm::Value* HostEmitter::shift(Fn fn, DType dtype, Value* a, Value* amount) {
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

llvm::Value* HostEmitter::extremum(Fn fn, DType dtype, Value* a, Value* b) {
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

llvm::Value* HostEmitter::compare(Fn fn, DType dtype, Value* a, Value* b) {
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

llvm::Value* HostEmitter::call_libm(Fn fn, std::span<Value* const> arguments) {
  llvm::Type* type = arguments[0]->getType();
  if (!type->getScalarType()->isDoubleTy()) {
    throw InternalError(
        fmt::format("kernel @{}: {} reached the host emitter unexpanded", kernel_.name, name(fn)));
  }
  for (const LibmFunction& function : libm_functions()) {
    if (function.fn != fn) continue;
    std::vector<llvm::Type*> parameters(arguments.size(), ir_.getDoubleTy());
    auto* signature = llvm::FunctionType::get(ir_.getDoubleTy(), parameters, false);
    llvm::FunctionCallee callee = module_.getOrInsertFunction(function.name, signature);
    if (auto* declared = llvm::dyn_cast<llvm::Function>(callee.getCallee())) {
      declared->setDoesNotAccessMemory();
      declared->setDoesNotThrow();
    }
    if (!type->isVectorTy()) return ir_.CreateCall(callee, {arguments.data(), arguments.size()});
    Value* out = llvm::PoisonValue::get(type);
    unsigned lanes = llvm::cast<llvm::FixedVectorType>(type)->getNumElements();
    for (unsigned i = 0; i < lanes; ++i) {
      std::vector<Value*> scalars;
      for (Value* argument : arguments) scalars.push_back(lane(argument, i));
      out = ir_.CreateInsertElement(out, ir_.CreateCall(callee, scalars), i);
    }
    return out;
  }
  throw InternalError(fmt::format("kernel @{}: no libm function for {}", kernel_.name, name(fn)));
}

}  // namespace tenon::codegen
