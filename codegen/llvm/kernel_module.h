// One kernel as an LLVM module on its way to machine code or text.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace llvm {
class IRBuilderBase;
class LLVMContext;
class MemoryBuffer;
class Module;
class TargetMachine;
}  // namespace llvm

namespace tenon::codegen {

// LLVM's fatal errors become InternalError from here on.
void catch_fatal_errors();

class KernelModule {
 public:
  using EmitFunction =
      std::function<void(llvm::Module&, llvm::IRBuilderBase&, const llvm::TargetMachine&)>;

  KernelModule(const std::string& name, const std::string& triple,
               std::unique_ptr<llvm::TargetMachine> machine, bool keep_names,
               const EmitFunction& emit);
  ~KernelModule();

  // `hoist`: what does not change in a loop moves out of it, which takes registers.
  void optimize(bool hoist = true);
  const llvm::Module& module() const { return *module_; }
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
