#include "codegen/llvm/emit_remainder.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <string>
#include <utility>

namespace tenon::codegen {

namespace {

using llvm::Value;

class RemainderWriter {
 public:
  RemainderWriter(llvm::Function* function, llvm::Type* real)
      : function_(function),
        ir_(function->getContext()),
        real_(real),
        width_(real->getScalarSizeInBits()),
        fraction_(width_ == 32 ? 23 : 52),
        bits_(ir_.getIntNTy(width_)) {}

  void run() {
    auto* entry = block("entry");
    auto *ordinary = block("ordinary"), *divide = block("divide"), *step = block("step");
    auto *found = block("found"), *unusual = block("unusual"), *whole = block("whole");
    ir_.SetInsertPoint(entry);
    Value *x = function_->getArg(0), *y = function_->getArg(1);
    Value* x_bits = ir_.CreateBitCast(x, bits_);
    Value* sign = ir_.CreateAnd(x_bits, number(uint64_t{1} << (width_ - 1)));
    Value* a = magnitude(x_bits);
    Value* b = magnitude(ir_.CreateBitCast(y, bits_));
    Value* infinity = number(((uint64_t{1} << (width_ - 1 - fraction_)) - 1) << fraction_);
    Value* undefined =
        ir_.CreateOr(ir_.CreateICmpEQ(b, number(0)),
                     ir_.CreateOr(ir_.CreateICmpUGE(a, infinity), ir_.CreateICmpUGT(b, infinity)));
    ir_.CreateCondBr(undefined, unusual, ordinary);
    ir_.SetInsertPoint(unusual);
    ir_.CreateRet(llvm::ConstantFP::getNaN(real_));
    ir_.SetInsertPoint(ordinary);
    ir_.CreateCondBr(ir_.CreateICmpULT(a, b), whole, divide);
    ir_.SetInsertPoint(whole);
    ir_.CreateRet(x);

    // Long division, one bit of the quotient after the other.
    ir_.SetInsertPoint(divide);
    auto [a_fraction, a_exponent] = take_apart(a);
    auto [b_fraction, b_exponent] = take_apart(b);
    Value* steps = ir_.CreateSub(a_exponent, b_exponent);
    ir_.CreateBr(step);
    ir_.SetInsertPoint(step);
    llvm::PHINode* left = ir_.CreatePHI(bits_, 2);
    llvm::PHINode* count = ir_.CreatePHI(bits_, 2);
    Value* rest = ir_.CreateSelect(ir_.CreateICmpUGE(left, b_fraction),
                                   ir_.CreateSub(left, b_fraction), left);
    left->addIncoming(a_fraction, divide);
    left->addIncoming(ir_.CreateShl(rest, 1), step);
    count->addIncoming(steps, divide);
    count->addIncoming(ir_.CreateSub(count, number(1)), step);
    ir_.CreateCondBr(ir_.CreateICmpEQ(count, number(0)), found, step);

    ir_.SetInsertPoint(found);
    Value* put_together = assemble(rest, b_exponent);
    Value* result = ir_.CreateSelect(ir_.CreateICmpEQ(rest, number(0)), number(0), put_together);
    ir_.CreateRet(ir_.CreateBitCast(ir_.CreateOr(result, sign), real_));
  }

 private:
  llvm::BasicBlock* block(const char* name) {
    return llvm::BasicBlock::Create(function_->getContext(), name, function_);
  }
  Value* number(uint64_t value) { return llvm::ConstantInt::get(bits_, value); }
  Value* magnitude(Value* bits) {
    return ir_.CreateAnd(bits, number((uint64_t{1} << (width_ - 1)) - 1));
  }
  // How far the leading one lies below its place in a normal number.
  Value* missing_places(Value* fraction) {
    Value* zeros = ir_.CreateIntrinsic(llvm::Intrinsic::ctlz, {bits_}, {fraction, ir_.getFalse()});
    return ir_.CreateSub(zeros, number(width_ - 1 - fraction_));
  }
  // Fraction with its leading one, exponent as stored; subnormal numbers get exponents below 1.
  std::pair<Value*, Value*> take_apart(Value* a) {
    Value* exponent = ir_.CreateLShr(a, number(fraction_));
    Value* low = ir_.CreateAnd(a, number((uint64_t{1} << fraction_) - 1));
    Value* normal = ir_.CreateOr(low, number(uint64_t{1} << fraction_));
    Value* places = missing_places(a);
    Value* is_subnormal = ir_.CreateICmpEQ(exponent, number(0));
    Value* safe = ir_.CreateSelect(is_subnormal, places, number(0));
    return {ir_.CreateSelect(is_subnormal, ir_.CreateShl(a, safe), normal),
            ir_.CreateSelect(is_subnormal, ir_.CreateSub(number(1), safe), exponent)};
  }
  Value* assemble(Value* fraction, Value* exponent) {
    Value* is_zero = ir_.CreateICmpEQ(fraction, number(0));
    Value* places = ir_.CreateSelect(is_zero, number(0), missing_places(fraction));
    Value* normalized = ir_.CreateShl(fraction, places);
    Value* power = ir_.CreateSub(exponent, places);
    Value* is_normal = ir_.CreateICmpSGT(power, number(0));
    Value* low = ir_.CreateAnd(normalized, number((uint64_t{1} << fraction_) - 1));
    Value* normal = ir_.CreateOr(low, ir_.CreateShl(power, number(fraction_)));
    Value* shift = ir_.CreateSelect(is_normal, number(0), ir_.CreateSub(number(1), power));
    return ir_.CreateSelect(is_normal, normal, ir_.CreateLShr(normalized, shift));
  }

  llvm::Function* function_;
  llvm::IRBuilder<> ir_;
  llvm::Type* real_;
  unsigned width_, fraction_;
  llvm::IntegerType* bits_;
};

}  // namespace

llvm::Function* remainder_function(llvm::Module& module, llvm::Type* real) {
  std::string name = real->isFloatTy() ? "tenon_remainder_f32" : "tenon_remainder_f64";
  if (llvm::Function* existing = module.getFunction(name)) return existing;
  auto* signature = llvm::FunctionType::get(real, {real, real}, false);
  auto* function = llvm::Function::Create(signature, llvm::Function::InternalLinkage, name, module);
  function->setDoesNotAccessMemory();
  function->setDoesNotThrow();
  RemainderWriter(function, real).run();
  return function;
}

}  // namespace tenon::codegen
