// Conversions between element types, bit for bit those of base/convert.h.
#include <llvm/IR/IRBuilder.h>

#include "codegen/llvm/emit_kernel.h"

namespace tenon::codegen {

llvm::Value* KernelEmitter::cast(DType from, DType to, Value* x) {
  if (from == to) return x;
  llvm::Type* shape = x->getType();
  llvm::Type* target = shape->getWithNewType(element_type(to));
  if (is_floating(from) && is_floating(to)) return float_to_float(from, to, x);
  if (to == DType::kBool) {
    if (!is_floating(from)) return ir_.CreateICmpNE(x, llvm::Constant::getNullValue(shape));
    Value* wide = from == DType::kF64 ? x : float_to_float(from, DType::kF32, x);
    return ir_.CreateFCmpUNE(wide, llvm::Constant::getNullValue(wide->getType()));
  }
  if (is_floating(from)) return float_to_integer(from, to, x);
  bool with_sign = from != DType::kBool && is_signed(from);
  if (!is_floating(to)) {
    return with_sign ? ir_.CreateSExtOrTrunc(x, target) : ir_.CreateZExtOrTrunc(x, target);
  }
  // An integer that f16 can hold is exact in f32; the others are infinite either way.
  DType direct = to == DType::kF64 ? DType::kF64 : DType::kF32;
  llvm::Type* direct_type = shape->getWithNewType(element_type(direct));
  Value* real = with_sign ? ir_.CreateSIToFP(x, direct_type) : ir_.CreateUIToFP(x, direct_type);
  return float_to_float(direct, to, real);
}

llvm::Value* KernelEmitter::float_to_float(DType from, DType to, Value* x) {
  if (from == to) return x;
  // LLVM 19 crashes on AArch64 over half vectors of one lane: a second one keeps it from that.
  if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(x->getType());
      vector && vector->getNumElements() == 1) {
    Value* two = ir_.CreateShuffleVector(x, {0, 0});
    return ir_.CreateShuffleVector(float_to_float(from, to, two), {0});
  }
  auto as = [&](llvm::Type* element) { return x->getType()->getWithNewType(element); };
  switch (from) {
    case DType::kF16:
      x = ir_.CreateFPExt(ir_.CreateBitCast(x, as(ir_.getHalfTy())), as(ir_.getFloatTy()));
      return float_to_float(DType::kF32, to, x);
    case DType::kBF16:
      x = ir_.CreateShl(ir_.CreateZExt(x, as(ir_.getInt32Ty())), 16);
      x = ir_.CreateBitCast(x, as(ir_.getFloatTy()));
      return float_to_float(DType::kF32, to, x);
    case DType::kF64:
      if (to == DType::kF32) return ir_.CreateFPTrunc(x, as(ir_.getFloatTy()));
      return float_to_float(DType::kF32, to, f64_to_f32_odd(x));
    default:
      break;
  }
  if (to == DType::kF64) return ir_.CreateFPExt(x, as(ir_.getDoubleTy()));
  if (to == DType::kBF16) return f32_to_bf16(x);
  return ir_.CreateBitCast(ir_.CreateFPTrunc(x, as(ir_.getHalfTy())), as(ir_.getInt16Ty()));
}

// By integer arithmetic: x86's own instruction flushes subnormal numbers.
llvm::Value* KernelEmitter::f32_to_bf16(Value* x) {
  llvm::Type* i32 = x->getType()->getWithNewType(ir_.getInt32Ty());
  auto number = [&](uint32_t value) { return llvm::ConstantInt::get(i32, value); };
  Value* bits = ir_.CreateBitCast(x, i32);
  Value* upper = ir_.CreateLShr(bits, 16);
  Value* odd = ir_.CreateAnd(upper, number(1));
  Value* rounded = ir_.CreateLShr(ir_.CreateAdd(bits, ir_.CreateAdd(odd, number(0x7fff))), 16);
  Value* quiet_nan = ir_.CreateOr(upper, number(0x40));
  Value* out = ir_.CreateSelect(ir_.CreateFCmpUNO(x, x), quiet_nan, rounded);
  return ir_.CreateTrunc(out, x->getType()->getWithNewType(ir_.getInt16Ty()));
}

// Rounded to odd, so that rounding once more to 16 bits gives the correctly rounded result.
llvm::Value* KernelEmitter::f64_to_f32_odd(Value* x) {
  llvm::Type* f32 = x->getType()->getWithNewType(ir_.getFloatTy());
  llvm::Type* i32 = x->getType()->getWithNewType(ir_.getInt32Ty());
  auto magnitude = [&](Value* v) { return ir_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v); };
  Value* nearest = ir_.CreateFPTrunc(x, f32);
  Value* back = ir_.CreateFPExt(nearest, x->getType());
  Value* inexact = ir_.CreateFCmpONE(back, x);
  Value* too_large = ir_.CreateFCmpOGT(magnitude(back), magnitude(x));
  Value* bits = ir_.CreateBitCast(nearest, i32);
  Value* truncated = ir_.CreateSub(bits, ir_.CreateZExt(too_large, i32));
  Value* odd = ir_.CreateOr(truncated, ir_.CreateZExt(inexact, i32));
  return ir_.CreateBitCast(odd, f32);
}

// Through i32 for the narrow types and i64 for the others; out of range is the smallest of those.
llvm::Value* KernelEmitter::float_to_integer(DType from, DType to, Value* x) {
  if (from != DType::kF64) x = float_to_float(from, DType::kF32, x);
  bool wide = to == DType::kI64 || to == DType::kU64 || to == DType::kU32;
  Value* integer = truncate_to(wide ? 64 : 32, x);
  if (to == DType::kU64) {  // the upper half of the range
    llvm::Type* type = x->getType();
    Value* above = ir_.CreateFCmpOGE(x, llvm::ConstantFP::get(type, 0x1p63));
    Value* fits = ir_.CreateAnd(above, ir_.CreateFCmpOLT(x, llvm::ConstantFP::get(type, 0x1p64)));
    Value* safe = ir_.CreateSelect(fits, x, llvm::Constant::getNullValue(type));
    integer = ir_.CreateSelect(fits, ir_.CreateFPToUI(safe, integer->getType()), integer);
  }
  return ir_.CreateTrunc(integer, x->getType()->getWithNewType(element_type(to)));
}

llvm::Value* KernelEmitter::truncate_to(int bits, Value* x) {
  llvm::Type* type = x->getType();
  llvm::Type* target = type->getWithNewType(ir_.getIntNTy(static_cast<unsigned>(bits)));
  double limit = bits == 32 ? 0x1p31 : 0x1p63;
  // The last number that truncates to the smallest integer lies up to 1 below it.
  bool has_fraction = bits == 32 && type->getScalarType()->isDoubleTy();
  Value* low = has_fraction ? ir_.CreateFCmpOGT(x, llvm::ConstantFP::get(type, -limit - 1))
                            : ir_.CreateFCmpOGE(x, llvm::ConstantFP::get(type, -limit));
  Value* fits = ir_.CreateAnd(low, ir_.CreateFCmpOLT(x, llvm::ConstantFP::get(type, limit)));
  Value* safe = ir_.CreateSelect(fits, x, llvm::Constant::getNullValue(type));
  auto smallest = llvm::APInt::getSignedMinValue(static_cast<unsigned>(bits));
  return ir_.CreateSelect(fits, ir_.CreateFPToSI(safe, target),
                          llvm::ConstantInt::get(target, smallest));
}

}  // namespace tenon::codegen
