// One kernel as an LLVM module on its way to machine code.
#pragma once

#include <memory>
#include <string>

#include "codegen/target.h"
#include "codegen/tile/ir.h"

namespace llvm {
class LLVMContext;
class MemoryBuffer;
class Module;
class TargetMachine;
}  // namespace llvm

namespace tenon::codegen {

// "x86_64-unknown-linux-gnu": what code for this target is called in LLVM.
std::string triple_of(const HostTarget& target);

class KernelModule {
 public:
  // Emits the kernel. Throws UserError for a target whose backend is not linked in.
  KernelModule(const Kernel& kernel, const HostTarget& target, bool keep_names);
  ~KernelModule();

  void optimize();
  std::string llvm_text() const;
  std::string assembly() const;
  std::unique_ptr<llvm::MemoryBuffer> object() const;

 private:
  struct Diagnostics;
  void generate(bool as_object, std::string& out) const;
  void check_diagnostics() const;

  std::unique_ptr<llvm::LLVMContext> context_;
  std::unique_ptr<llvm::TargetMachine> machine_;
  std::unique_ptr<llvm::Module> module_;
  Diagnostics* diagnostics_ = nullptr;  // owned by the context
};

}  // namespace tenon::codegen
