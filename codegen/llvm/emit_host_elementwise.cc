// Elementwise operations where the host differs: f64 functions from libm, conversions of vectors.
#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>
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
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  if (op.op == Op::kBitcast && from.elements() != to.elements()) {
    llvm::Type* parts = vector_of(element_type(to.dtype), static_cast<int>(to.elements()));
    values_[op.results[0]] =
        from_flat(ir_.CreateBitCast(flat(tile(op.operands[0]), from), parts), to);
    return;
  }
  Tile out;
  for (size_t p = 0; p < tile(op.operands[0]).size(); ++p) {
    std::vector<Value*> operands;
    for (ValueId id : op.operands) operands.push_back(tile(id)[p]);
    if (op.op == Op::kTernary) operands[2] = addend(operands[2]);
    out.push_back(element_operation(op, operands));
  }
  values_[op.results[0]] = std::move(out);
}

// NEON's fmla overwrites its addend, so a constant one costs a copy each time, on the pipes that
// multiply. Read from the stack it costs a load instead, which they do not see; volatile, or it
// would be moved out of the loop and copied again.
llvm::Value* HostEmitter::addend(Value* constant) {
  constexpr int kLanes = 4;
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(constant->getType());
  auto* known = llvm::dyn_cast<llvm::Constant>(constant);
  if (target_.arch != HostArch::kAArch64 || !known || !vector ||
      !vector->getElementType()->isFloatTy() || vector->getNumElements() % kLanes != 0) {
    return constant;
  }
  auto* number = llvm::dyn_cast_or_null<llvm::ConstantFP>(known->getSplatValue());
  if (!number) return constant;
  llvm::Type* type = vector_of(ir_.getFloatTy(), kLanes);
  Value*& slot = addend_slots_[number->getValueAPF().bitcastToAPInt().getZExtValue()];
  if (!slot) {
    llvm::BasicBlock& entry = function_->getEntryBlock();
    llvm::IRBuilder<> ir(&entry, entry.getFirstInsertionPt());
    slot = ir.CreateAlloca(type);
    ir.CreateStore(llvm::ConstantFP::get(type, number->getValueAPF()), slot);
  }
  std::vector<Value*> parts;
  for (unsigned i = 0; i < vector->getNumElements(); i += kLanes) {
    parts.push_back(ir_.CreateLoad(type, slot, /*isVolatile=*/true));
  }
  return join(std::move(parts));
}

llvm::Value* HostEmitter::real_function(Fn fn, std::span<Value* const> arguments) {
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

llvm::Value* HostEmitter::truncate_to(int bits, Value* x) {
  llvm::Type* type = x->getType();
  if (bits == 32 && target_.arch == HostArch::kX86_64 && type->getScalarType()->isFloatTy() &&
      type->isVectorTy()) {
    return truncate_to_i32_x86(x);
  }
  return KernelEmitter::truncate_to(bits, x);
}

// vcvttps2dq gives the smallest integer by itself; as an intrinsic it is defined for all inputs.
llvm::Value* HostEmitter::truncate_to_i32_x86(Value* x) {
  int lanes = static_cast<int>(llvm::cast<llvm::FixedVectorType>(x->getType())->getNumElements());
  int width = lanes > 8 && target_.has("avx512f") ? 16 : lanes > 4 ? 8 : 4;
  return in_chunks(x, width, [&](Value* chunk) -> Value* {
    if (width == 4) return ir_.CreateIntrinsic(llvm::Intrinsic::x86_sse2_cvttps2dq, {}, {chunk});
    if (width == 8) {
      return ir_.CreateIntrinsic(llvm::Intrinsic::x86_avx_cvtt_ps2dq_256, {}, {chunk});
    }
    constexpr int kCurrentDirection = 4;  // truncation does not depend on the rounding mode
    Value* nothing = llvm::Constant::getNullValue(vector_of(ir_.getInt32Ty(), 16));
    return ir_.CreateIntrinsic(
        llvm::Intrinsic::x86_avx512_mask_cvttps2dq_512, {},
        {chunk, nothing, ir_.getInt16(0xffff), ir_.getInt32(kCurrentDirection)});
  });
}

}  // namespace tenon::codegen
