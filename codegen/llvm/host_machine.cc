#include "codegen/llvm/host_machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>

#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "codegen/llvm/emit_host.h"
#include "codegen/tile/content.h"
#include "codegen/tile/product_loops.h"

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

void initialize_once() {
  static std::once_flag once;
  std::call_once(once, initialize_backend);
  catch_fatal_errors();
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

namespace {

using Emit = std::function<llvm::Function*(const Kernel& loop)>;

// For each kernel the loops that another one has as well, or it has twice: functions to call.
std::vector<LoopFunctions> share_loops(std::span<const Kernel> kernels, const Emit& emit) {
  struct Place {
    size_t kernel = 0;
    ProductLoop loop;
  };
  std::map<Digest, std::vector<Place>> places;
  for (size_t i = 0; i < kernels.size(); ++i) {
    for (ProductLoop& loop : product_loops(kernels[i])) {
      const Digest content = content_of(loop.kernel);
      places[content].push_back({i, std::move(loop)});
    }
  }
  std::vector<LoopFunctions> shared(kernels.size());
  for (const auto& [content, equal] : places) {
    if (equal.size() < 2) continue;
    llvm::Function* function = emit(equal.front().loop.kernel);
    for (const Place& place : equal) {
      shared[place.kernel][place.loop.loop] = {function, place.loop.arguments};
    }
  }
  return shared;
}

}  // namespace

KernelModule host_module(std::span<const Kernel> kernels, const HostTarget& target,
                         bool keep_names) {
  std::vector<std::string_view> names;
  for (const Kernel& kernel : kernels) names.push_back(kernel.name);
  return {fmt::format("{}", fmt::join(names, ", @")), triple_of(target), make_machine(target),
          keep_names,
          [&](llvm::Module& module, llvm::IRBuilderBase& ir, const llvm::TargetMachine& machine) {
            const auto finish = [&](llvm::Function* function) {
              set_attributes(*function, target, machine);
              return function;
            };
            const std::vector<LoopFunctions> shared = share_loops(kernels, [&](const Kernel& loop) {
              return finish(HostEmitter(loop, target, module, ir).run_as_loop());
            });
            for (size_t i = 0; i < kernels.size(); ++i) {
              finish(HostEmitter(kernels[i], target, module, ir, shared[i]).run());
            }
          }};
}

}  // namespace tenon::codegen
