#include "codegen/llvm/gpu_machine.h"

#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>

#include <mutex>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "codegen/llvm/emit_gpu.h"
#include "codegen/llvm/kernel_module.h"
#include "codegen/llvm/products_in_flight.h"

extern "C" {
void LLVMInitializeNVPTXTargetInfo();
void LLVMInitializeNVPTXTarget();
void LLVMInitializeNVPTXTargetMC();
void LLVMInitializeNVPTXAsmPrinter();
}

namespace tenon::codegen {

namespace {

constexpr const char* kTriple = "nvptx64-nvidia-cuda";

void initialize_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
  catch_fatal_errors();
}

std::unique_ptr<llvm::TargetMachine> make_machine(const ArchSpec& arch) {
  initialize_once();
  std::string error;
  const llvm::Target* backend = llvm::TargetRegistry::lookupTarget(kTriple, error);
  if (!backend) throw InternalError("LLVM has no backend: " + error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;  // `fma` alone is fused
  return std::unique_ptr<llvm::TargetMachine>(backend->createTargetMachine(
      kTriple, arch.emitted_as, arch.emitted_ptx, options, llvm::Reloc::PIC_, std::nullopt,
      llvm::CodeGenOptLevel::Default));
}

// A CTA has exactly this many threads, and so many should run beside each other on an SM. TMA
// descriptors stay where the launch put them.
void annotate(llvm::Module& module, llvm::Function* function, int threads, int ctas_per_sm,
              size_t descriptors) {
  auto& context = module.getContext();
  auto* i32 = llvm::Type::getInt32Ty(context);
  auto note = [&](const char* what, int value) {
    llvm::Metadata* parts[] = {
        llvm::ValueAsMetadata::get(function), llvm::MDString::get(context, what),
        llvm::ConstantAsMetadata::get(llvm::ConstantInt::get(i32, static_cast<uint64_t>(value)))};
    module.getOrInsertNamedMetadata("nvvm.annotations")
        ->addOperand(llvm::MDNode::get(context, parts));
  };
  note("kernel", 1);
  note("reqntidx", threads);
  note("reqntidy", 1);
  note("reqntidz", 1);
  if (descriptors == 0) return;
  note("minctasm", ctas_per_sm);  // without it the assembler ignores that registers are dealt anew
  std::vector<llvm::Metadata*> numbers;
  for (size_t i = function->arg_size() - descriptors; i < function->arg_size(); ++i) {
    numbers.push_back(llvm::ConstantAsMetadata::get(llvm::ConstantInt::get(i32, i + 1)));
  }
  llvm::Metadata* parts[] = {llvm::ValueAsMetadata::get(function),
                             llvm::MDString::get(context, "grid_constant"),
                             llvm::MDNode::get(context, numbers)};
  module.getOrInsertNamedMetadata("nvvm.annotations")
      ->addOperand(llvm::MDNode::get(context, parts));
}

void check_products(const KernelModule& module, const std::string& name, const StageSink& sink) {
  const llvm::Function* function = module.module().getFunction(name);
  if (sink) {
    const std::string table = products_in_flight_text(*function);
    if (!table.empty()) sink(name, "products_in_flight", table);
  }
  if (Support safe = verify_products_in_flight(*function); !safe) throw InternalError(safe.reason);
}

void replace_line(std::string& text, std::string_view beginning, const std::string& line) {
  size_t at = text.find(beginning);
  if (at == std::string::npos) {
    throw InternalError(fmt::format("PTX has no line '{}'", beginning));
  }
  text.replace(at, text.find('\n', at) - at, line);
}

}  // namespace

PtxText emit_ptx(const Kernel& kernel, int threads, const GpuTarget& target,
                 const StageSink& sink) {
  const ArchSpec& arch = arch_spec(target.arch);
  PtxText out;
  bool hoist = false;
  KernelModule module(kernel.name, kTriple, make_machine(arch),
                      /*keep_names=*/static_cast<bool>(sink),
                      [&](llvm::Module& into, llvm::IRBuilderBase& ir, const llvm::TargetMachine&) {
                        GpuEmitter emitter(kernel, threads, target, into, ir);
                        llvm::Function* function = emitter.run();
                        annotate(into, function, emitter.threads(), emitter.ctas_per_sm(),
                                 emitter.tma_descriptors().size());
                        out.shared_bytes = emitter.shared_bytes();
                        out.threads = emitter.threads();
                        out.tma_descriptors = emitter.tma_descriptors();
                        out.pdl = emitter.uses_pdl();
                        hoist = emitter.has_registers_to_spare();
                      });
  if (out.shared_bytes > target.shared_bytes) {
    throw UserError(fmt::format(
        "kernel @{} needs {} bytes of shared memory per CTA; {} has {}: use smaller tiles",
        kernel.name, out.shared_bytes, target.arch, target.shared_bytes));
  }
  if (sink) sink(kernel.name, "llvm", module.llvm_text());
  // The assembler hoists as well, and knows how many registers are left; where there are enough it
  // still computes addresses anew in each step.
  module.optimize(hoist);
  if (sink) sink(kernel.name, "llvm.optimized", module.llvm_text());
  check_products(module, kernel.name, sink);
  out.text = module.assembly();
  // LLVM knows nothing newer than sm_90a; what it writes is valid for later ones all the same.
  replace_line(out.text, ".version", fmt::format(".version {}", arch.ptx));
  replace_line(out.text, ".target", fmt::format(".target {}", arch.name));
  return out;
}

BlockPlan plan_block(const Kernel& kernel, int threads, const GpuTarget& target) {
  BlockPlan out;
  KernelModule module(kernel.name, kTriple, make_machine(arch_spec(target.arch)),
                      /*keep_names=*/false,
                      [&](llvm::Module& into, llvm::IRBuilderBase& ir, const llvm::TargetMachine&) {
                        GpuEmitter emitter(kernel, threads, target, into, ir);
                        emitter.run();
                        out = {emitter.shared_bytes(), emitter.threads()};
                      });
  return out;
}

}  // namespace tenon::codegen
