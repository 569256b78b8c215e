#include "codegen/llvm/kernel_module.h"

#include <fmt/format.h>
#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/Analysis/LoopAnalysisManager.h>
#include <llvm/IR/DiagnosticHandler.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/GVN.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>
#include <llvm/Transforms/Utils/Mem2Reg.h>

#include <mutex>

#include "base/error.h"

namespace tenon::codegen {

namespace {

// LLVM ends the process after this returns, so it must not return.
void throw_fatal_error(void*, const char* reason, bool) {
  throw InternalError(fmt::format("LLVM gave up: {}", reason));
}

}  // namespace

void catch_fatal_errors() {
  static std::once_flag once;
  std::call_once(once, [] { llvm::install_fatal_error_handler(throw_fatal_error); });
}

// Keeps LLVM from printing errors and ending the process.
struct KernelModule::Diagnostics : llvm::DiagnosticHandler {
  std::string errors;

  bool handleDiagnostics(const llvm::DiagnosticInfo& info) override {
    if (info.getSeverity() != llvm::DS_Error) return true;
    llvm::raw_string_ostream stream(errors);
    llvm::DiagnosticPrinterRawOStream printer(stream);
    info.print(printer);
    return true;
  }
};

KernelModule::KernelModule(const std::string& name, const std::string& triple,
                           std::unique_ptr<llvm::TargetMachine> machine, bool keep_names,
                           const EmitFunction& emit)
    : context_(std::make_unique<llvm::LLVMContext>()), machine_(std::move(machine)) {
  auto diagnostics = std::make_unique<Diagnostics>();
  diagnostics_ = diagnostics.get();
  context_->setDiagnosticHandler(std::move(diagnostics));
  context_->setDiscardValueNames(!keep_names);
  module_ = std::make_unique<llvm::Module>(name, *context_);
  module_->setTargetTriple(triple);
  module_->setDataLayout(machine_->createDataLayout());
  llvm::IRBuilder<> ir(*context_);
  emit(*module_, ir, *machine_);
  std::string why;
  llvm::raw_string_ostream stream(why);
  if (llvm::verifyModule(*module_, &stream)) {
    throw InternalError(fmt::format("kernel @{}: bad LLVM IR: {}", name, stream.str()));
  }
}

KernelModule::~KernelModule() = default;

void KernelModule::check_diagnostics() const {
  if (!diagnostics_->errors.empty()) {
    throw InternalError(
        fmt::format("kernel @{}: LLVM: {}", module_->getName().str(), diagnostics_->errors));
  }
}

// The emitter writes SSA and vectors already: what is left is to merge, simplify and hoist.
void KernelModule::optimize(bool hoist) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder passes(machine_.get());
  passes.registerModuleAnalyses(modules);
  passes.registerCGSCCAnalyses(components);
  passes.registerFunctionAnalyses(functions);
  passes.registerLoopAnalyses(loops);
  passes.crossRegisterProxies(loops, functions, components, modules);

  llvm::FunctionPassManager pipeline;
  pipeline.addPass(llvm::PromotePass());
  pipeline.addPass(llvm::EarlyCSEPass());
  pipeline.addPass(llvm::InstCombinePass());
  if (hoist) {
    pipeline.addPass(llvm::createFunctionToLoopPassAdaptor(llvm::LICMPass(llvm::LICMOptions{}),
                                                           /*UseMemorySSA=*/true));
  }
  pipeline.addPass(llvm::EarlyCSEPass(/*UseMemorySSA=*/true));
  pipeline.addPass(llvm::SimplifyCFGPass());
  for (llvm::Function& function : *module_) {
    if (!function.isDeclaration()) pipeline.run(function, functions);
  }
  check_diagnostics();
}

std::string KernelModule::llvm_text() const {
  std::string out;
  llvm::raw_string_ostream stream(out);
  module_->print(stream, nullptr);
  return out;
}

void KernelModule::generate(bool as_object, std::string& out) const {
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager passes;
  auto kind = as_object ? llvm::CodeGenFileType::ObjectFile : llvm::CodeGenFileType::AssemblyFile;
  if (machine_->addPassesToEmitFile(passes, stream, nullptr, kind, /*DisableVerify=*/true)) {
    throw InternalError("LLVM's backend cannot write this kind of file");
  }
  passes.run(*module_);
  check_diagnostics();
  out.assign(bytes.begin(), bytes.end());
}

std::string KernelModule::assembly() const {
  std::string out;
  generate(/*as_object=*/false, out);
  return out;
}

std::unique_ptr<llvm::MemoryBuffer> KernelModule::object() const {
  std::string out;
  generate(/*as_object=*/true, out);
  return llvm::MemoryBuffer::getMemBufferCopy(out, module_->getName());
}

}  // namespace tenon::codegen
