#include "codegen/llvm/host_jit.h"

#include <fmt/format.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/error.h"
#include "codegen/llvm/emit_host.h"
#include "codegen/llvm/host_machine.h"

namespace tenon::codegen {

namespace {

namespace orc = llvm::orc;

void check(llvm::Error error, std::string_view what) {
  if (error) {
    throw InternalError(fmt::format("{}: {}", what, llvm::toString(std::move(error))));
  }
}

template <typename T>
T check(llvm::Expected<T> expected, std::string_view what) {
  if (!expected) check(expected.takeError(), what);
  return std::move(*expected);
}

// What generated code may call: nothing else of the process is visible to it.
void define_callees(orc::LLJIT& linker) {
  orc::SymbolMap symbols;
  auto define = [&](const char* name, void* address) {
    symbols[linker.mangleAndIntern(name)] = {orc::ExecutorAddr::fromPtr(address),
                                             llvm::JITSymbolFlags::Exported};
  };
  for (const LibmFunction& function : libm_functions()) define(function.name, function.address);
  define("fmodf", reinterpret_cast<void*>(static_cast<float (*)(float, float)>(std::fmod)));
  define("memcpy", reinterpret_cast<void*>(&std::memcpy));
  define("memmove", reinterpret_cast<void*>(&std::memmove));
  define("memset", reinterpret_cast<void*>(&std::memset));
  check(linker.getMainJITDylib().define(orc::absoluteSymbols(std::move(symbols))),
        "naming what host code may call");
}

// ORC links objects here; compiling is done by KernelModule.
std::unique_ptr<orc::LLJIT> make_linker(const HostTarget& target) {
  orc::LLJITBuilder builder;
  builder.setJITTargetMachineBuilder(orc::JITTargetMachineBuilder(llvm::Triple(triple_of(target))));
  builder.setPlatformSetUp(orc::setUpInactivePlatform);
  builder.setLinkProcessSymbolsByDefault(false);
  builder.setObjectLinkingLayerCreator(
      [](orc::ExecutionSession& session,
         const llvm::Triple&) -> llvm::Expected<std::unique_ptr<orc::ObjectLayer>> {
        return std::make_unique<orc::ObjectLinkingLayer>(session);
      });
  std::unique_ptr<orc::LLJIT> linker = check(builder.create(), "creating the linker for host code");
  define_callees(*linker);
  return linker;
}

// With TENON_PERF_MAP=1, perf finds kernels by name in the file that it expects of compilers like
// this one. An object is its kernel and little more, so its size stands for the kernel's. Anybody
// may put a file or a link of that name into /tmp: those are left alone.
void name_for_perf(const std::string& kernel, orc::ExecutorAddr address, size_t bytes) {
  const char* wanted = ::secure_getenv("TENON_PERF_MAP");
  if (wanted == nullptr || *wanted == 0) return;
  constexpr int kAppend = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const std::string path = fmt::format("/tmp/perf-{}.map", ::getpid());
  const int map = ::open(path.c_str(), kAppend, 0644);
  if (map < 0) return;
  struct stat known {};
  if (::fstat(map, &known) == 0 && S_ISREG(known.st_mode) && known.st_uid == ::geteuid()) {
    const std::string line = fmt::format("{:x} {:x} tenon:{}\n", address.getValue(), bytes, kernel);
    (void)!::write(map, line.data(), line.size());  // perf does without
  }
  ::close(map);
}

class LinkedCode final : public HostCode {
 public:
  explicit LinkedCode(std::unique_ptr<orc::LLJIT> linker) : linker_(std::move(linker)) {}

  void link(const std::string& kernel, std::unique_ptr<llvm::MemoryBuffer> object) {
    const size_t bytes = object->getBufferSize();
    check(linker_->addObjectFile(std::move(object)), "linking kernel @" + kernel);
    orc::ExecutorAddr address = check(linker_->lookup(kernel), "linking kernel @" + kernel);
    name_for_perf(kernel, address, bytes);
    functions_[kernel] = address.toPtr<HostFunction>();
  }

  HostFunction function(std::string_view kernel) const override {
    auto found = functions_.find(kernel);
    if (found == functions_.end()) {
      throw InternalError(fmt::format("no kernel @{} was compiled here", kernel));
    }
    return found->second;
  }

 private:
  std::unique_ptr<orc::LLJIT> linker_;
  std::map<std::string, HostFunction, std::less<>> functions_;
};

}  // namespace

std::shared_ptr<HostCode> jit_host(std::span<const Kernel> kernels, const HostTarget& target,
                                   const StageSink& sink) {
  std::map<std::string, std::unique_ptr<llvm::MemoryBuffer>> objects;
  for (const Kernel& kernel : kernels) {
    KernelModule module = host_module(kernel, target, /*keep_names=*/static_cast<bool>(sink));
    if (sink) sink(kernel.name, "llvm", module.llvm_text());
    module.optimize();
    if (sink) {
      sink(kernel.name, "llvm.optimized", module.llvm_text());
      // Generating code changes the module, so the listing is made from a module of its own.
      sink(kernel.name, "asm", host_text(kernel, target, "asm"));
    }
    if (!objects.emplace(kernel.name, module.object()).second) {
      throw InternalError(fmt::format("two kernels are called @{}", kernel.name));
    }
  }
  auto code = std::make_shared<LinkedCode>(make_linker(target));
  for (auto& [name, object] : objects) code->link(name, std::move(object));
  return code;
}

std::string host_text(const Kernel& kernel, const HostTarget& target, std::string_view stage) {
  KernelModule module = host_module(kernel, target, /*keep_names=*/true);
  if (stage == "llvm") return module.llvm_text();
  module.optimize();
  if (stage == "llvm.optimized") return module.llvm_text();
  if (stage == "asm") return module.assembly();
  throw UserError(
      fmt::format("no stage is called '{}': choose tile, tile.expanded, llvm, "
                  "llvm.optimized or asm",
                  stage));
}

}  // namespace tenon::codegen
