#include "codegen/llvm/host_machine.h"

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
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/GVN.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>

#include <mutex>

#include "base/error.h"
#include "codegen/llvm/emit_host.h"

namespace tenon::codegen {

namespace {

#if defined(__x86_64__)
constexpr HostArch kLinkedBackend = HostArch::kX86_64;
void initialize_backend() {
  LLVMInitializeX86TargetInfo();
  LLVMInitializeX86Target();
  LLVMInitializeX86TargetMC();
  LLVMInitializeX86AsmPrinter();
}
#elif defined(__aarch64__)
constexpr HostArch kLinkedBackend = HostArch::kAArch64;
void initialize_backend() {
  LLVMInitializeAArch64TargetInfo();
  LLVMInitializeAArch64Target();
  LLVMInitializeAArch64TargetMC();
  LLVMInitializeAArch64AsmPrinter();
}
#else
#error "Tenon runs on x86_64 and aarch64"
#endif

// LLVM ends the process after this returns, so it must not return.
void throw_fatal_error(void*, const char* reason, bool) {
  throw InternalError(fmt::format("LLVM gave up: {}", reason));
}

void initialize_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    initialize_backend();
    llvm::install_fatal_error_handler(throw_fatal_error);
  });
}

// Scheduling and shuffle costs; features come from the target itself.
const char* tuning(const HostTarget& target) {
  if (target.arch == HostArch::kAArch64) return "neoverse-n1";
  return target.has("avx512f") ? "icelake-server" : "haswell";
}

std::string feature_string(const HostTarget& target) {
  std::string out;
  for (const std::string& feature : target.features) out += "+" + feature + ",";
  // Tuning for servers prefers half-width vectors, from the days when wide ones cost clock speed.
  if (target.arch == HostArch::kX86_64) return out + "-prefer-256-bit";
  return out + "-sve";
}

void check_floor(const HostTarget& target) {
  if (target.arch != kLinkedBackend) {
    throw UserError(
        fmt::format("this build of Tenon holds no code generator for {}", triple_of(target)));
  }
  if (target.arch == HostArch::kAArch64) return;
  for (const char* feature : {"avx2", "fma", "f16c"}) {
    if (!target.has(feature)) {
      throw UserError(
          fmt::format("Tenon needs an x86_64 processor with AVX2, FMA and F16C; '{}' "
                      "has no {}",
                      target.name, feature));
    }
  }
}

std::unique_ptr<llvm::TargetMachine> make_machine(const HostTarget& target) {
  check_floor(target);
  initialize_once();
  std::string error, triple = triple_of(target);
  const llvm::Target* backend = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!backend) throw InternalError("LLVM has no backend: " + error);
  const char* cpu = target.arch == HostArch::kX86_64 ? "x86-64" : "generic";
  llvm::TargetOptions options;
  return std::unique_ptr<llvm::TargetMachine>(backend->createTargetMachine(
      triple, cpu, feature_string(target), options, llvm::Reloc::PIC_, llvm::CodeModel::Small,
      llvm::CodeGenOptLevel::Default, /*JIT=*/true));
}

void set_attributes(llvm::Function& function, const HostTarget& target,
                    const llvm::TargetMachine& machine) {
  function.addFnAttr(llvm::Attribute::NoUnwind);
  function.addFnAttr("target-cpu", machine.getTargetCPU());
  function.addFnAttr("tune-cpu", tuning(target));
  function.addFnAttr("target-features", machine.getTargetFeatureString());
  function.addFnAttr("prefer-vector-width", std::to_string(target.vector_bits));
}

}  // namespace

std::string triple_of(const HostTarget& target) {
  return target.arch == HostArch::kX86_64 ? "x86_64-unknown-linux-gnu"
                                          : "aarch64-unknown-linux-gnu";
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

KernelModule::KernelModule(const Kernel& kernel, const HostTarget& target, bool keep_names)
    : context_(std::make_unique<llvm::LLVMContext>()), machine_(make_machine(target)) {
  auto diagnostics = std::make_unique<Diagnostics>();
  diagnostics_ = diagnostics.get();
  context_->setDiagnosticHandler(std::move(diagnostics));
  context_->setDiscardValueNames(!keep_names);
  module_ = std::make_unique<llvm::Module>(kernel.name, *context_);
  module_->setTargetTriple(triple_of(target));
  module_->setDataLayout(machine_->createDataLayout());
  llvm::IRBuilder<> ir(*context_);
  llvm::Function* function = HostEmitter(kernel, target, *module_, ir).run();
  set_attributes(*function, target, *machine_);
  std::string why;
  llvm::raw_string_ostream stream(why);
  if (llvm::verifyFunction(*function, &stream)) {
    throw InternalError(fmt::format("kernel @{}: bad LLVM IR: {}", kernel.name, stream.str()));
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
void KernelModule::optimize() {
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
  pipeline.addPass(llvm::EarlyCSEPass());
  pipeline.addPass(llvm::InstCombinePass());
  pipeline.addPass(llvm::createFunctionToLoopPassAdaptor(llvm::LICMPass(llvm::LICMOptions{}),
                                                         /*UseMemorySSA=*/true));
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
