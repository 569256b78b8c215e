#include "codegen/llvm/products_in_flight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include "codegen/llvm/ptx.h"

namespace tenon::codegen {
namespace {

using ptx::Instruction;

// A loop of `steps` products, each a group whose four words are made while the groups before it
// run, and which `in_flight` groups may outlast, as the emitter writes it.
class Loop {
 public:
  Loop(int steps, int in_flight) : module_("test", context_), ir_(context_) {
    auto* words = llvm::PointerType::get(context_, 0);
    auto* signature =
        llvm::FunctionType::get(ir_.getVoidTy(), {words, ir_.getInt1Ty()}, /*isVarArg=*/false);
    function_ = llvm::Function::Create(signature, llvm::Function::ExternalLinkage, "loop", module_);
    auto* entry = llvm::BasicBlock::Create(context_, "entry", function_);
    auto* body = llvm::BasicBlock::Create(context_, "body", function_);
    auto* done = llvm::BasicBlock::Create(context_, "done", function_);
    ir_.SetInsertPoint(entry);
    ir_.CreateBr(body);
    ir_.SetInsertPoint(body);
    std::vector<llvm::Value*> next = make_words();
    for (int step = 0; step < steps; ++step) {
      ptx::multiply_async(ir_, DType::kF16, std::vector<llvm::Value*>(4, zero()), next,
                          ir_.getInt64(0));
      emit(Instruction::kProductCommit, {});
      if (step + 1 < steps) next = make_words();
      emit(Instruction::kProductWait, {ir_.getInt32(static_cast<uint32_t>(in_flight))});
    }
    ir_.CreateCondBr(function_->getArg(1), body, done);
    ir_.SetInsertPoint(done);
    emit(Instruction::kProductWait, {ir_.getInt32(0)});
    ir_.CreateRetVoid();
  }

  const llvm::Function& function() const { return *function_; }

 private:
  llvm::Value* zero() { return llvm::ConstantFP::get(ir_.getFloatTy(), 0); }
  std::vector<llvm::Value*> make_words() {
    std::vector<llvm::Value*> out;
    for (int i = 0; i < 4; ++i) {
      out.push_back(ir_.CreateLoad(ir_.getInt32Ty(), function_->getArg(0), /*isVolatile=*/true));
    }
    return out;
  }
  void emit(Instruction instruction, std::vector<llvm::Value*> operands) {
    ptx::emit(ir_, instruction, operands);
  }

  llvm::LLVMContext context_;
  llvm::Module module_;
  llvm::IRBuilder<> ir_;
  llvm::Function* function_ = nullptr;
};

// A round of four steps with three groups in flight: words of the second step are written while its
// group of the round before is one of four.
TEST(ProductsInFlight, WordsOfTheRoundBeforeAreNotOverwritten) {
  const Support refused = verify_products_in_flight(Loop(4, 3).function());
  EXPECT_FALSE(refused);
  EXPECT_THAT(refused.reason, testing::HasSubstr("wait for its group first"));
  EXPECT_TRUE(verify_products_in_flight(Loop(4, 2).function()));
  EXPECT_TRUE(verify_products_in_flight(Loop(8, 3).function()));
  EXPECT_FALSE(verify_products_in_flight(Loop(2, 1).function()));
  EXPECT_TRUE(verify_products_in_flight(Loop(2, 0).function()));
}

TEST(ProductsInFlight, TheTableSaysWhatIsRead) {
  const std::string table = products_in_flight_text(Loop(4, 2).function());
  EXPECT_THAT(table, testing::HasSubstr("commit: 2 groups in flight before it, it reads %"));
  EXPECT_THAT(table, testing::HasSubstr("wait: 2 of 3 groups stay in flight"));
}

TEST(ProductsInFlight, AStageIsReadUntilItsLastGroupHasEnded) {
  StagesInFlight stages;
  stages.begin_step(2);
  stages.commit();
  stages.wait(2);
  EXPECT_TRUE(stages.reads_stage_before());
  stages.commit();
  stages.wait(2);
  EXPECT_FALSE(stages.reads_stage_before());
}

}  // namespace
}  // namespace tenon::codegen
