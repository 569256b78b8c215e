#include "codegen/llvm/host_jit.h"

#include <fmt/format.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/Object/ELFObjectFile.h>
#include <llvm/Object/ObjectFile.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <vector>

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

// A function of an object, in bytes behind the beginning of the object's code.
struct CodePlace {
  std::string name;
  uint64_t begin = 0, bytes = 0;
};

// With TENON_PERF_MAP=1, perf finds kernels by name in the file that it expects of compilers like
// this one; empty without.
std::vector<CodePlace> places_for_perf(const llvm::MemoryBuffer& object) {
  const char* wanted = ::secure_getenv("TENON_PERF_MAP");
  if (wanted == nullptr || *wanted == 0) return {};
  const auto file = check(llvm::object::ObjectFile::createObjectFile(object), "reading host code");
  std::vector<CodePlace> places;
  for (const llvm::object::SymbolRef& symbol : file->symbols()) {
    if (check(symbol.getType(), "reading host code") != llvm::object::SymbolRef::ST_Function) {
      continue;
    }
    places.push_back({check(symbol.getName(), "reading host code").str(),
                      check(symbol.getAddress(), "reading host code"),
                      llvm::object::ELFSymbolRef(symbol).getSize()});
  }
  return places;
}

// Anybody may put a file or a link of that name into /tmp: those are left alone.
void append_for_perf(const std::string& lines) {
  constexpr int kAppend = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const std::string path = fmt::format("/tmp/perf-{}.map", ::getpid());
  const int map = ::open(path.c_str(), kAppend, 0644);
  if (map < 0) return;
  struct stat known {};
  if (::fstat(map, &known) == 0 && S_ISREG(known.st_mode) && known.st_uid == ::geteuid()) {
    (void)!::write(map, lines.data(), lines.size());  // perf does without
  }
  ::close(map);
}

void name_for_perf(const std::vector<CodePlace>& places, std::string_view kernel,
                   orc::ExecutorAddr address) {
  const auto known =
      std::ranges::find_if(places, [&](const CodePlace& place) { return place.name == kernel; });
  if (known == places.end()) return;
  const uint64_t code = address.getValue() - known->begin;
  std::string lines;
  for (const CodePlace& place : places) {
    lines += fmt::format("{:x} {:x} tenon:{}\n", code + place.begin, place.bytes, place.name);
  }
  append_for_perf(lines);
}

class LinkedCode final : public HostCode {
 public:
  LinkedCode(std::unique_ptr<orc::LLJIT> linker, std::span<const Kernel> kernels,
             std::unique_ptr<llvm::MemoryBuffer> object)
      : linker_(std::move(linker)) {
    const std::vector<CodePlace> places = places_for_perf(*object);
    check(linker_->addObjectFile(std::move(object)), "linking host code");
    orc::ExecutorAddr address;
    for (const Kernel& kernel : kernels) {
      address = check(linker_->lookup(kernel.name), "linking kernel @" + kernel.name);
      functions_[kernel.name] = address.toPtr<HostFunction>();
    }
    if (!kernels.empty()) name_for_perf(places, kernels.back().name, address);
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

void require_names_of_their_own(std::span<const Kernel> kernels) {
  std::set<std::string_view> names;
  for (const Kernel& kernel : kernels) {
    if (!names.insert(kernel.name).second) {
      throw InternalError(fmt::format("two kernels are called @{}", kernel.name));
    }
  }
}

// Of a module for each text: optimising and generating code change what they are given.
void show_stages(const Kernel& kernel, const HostTarget& target, const StageSink& sink) {
  for (const char* stage : {"llvm", "llvm.optimized", "asm"}) {
    sink(kernel.name, stage, host_text(kernel, target, stage));
  }
}

}  // namespace

std::shared_ptr<HostCode> jit_host(std::span<const Kernel> kernels, const HostTarget& target,
                                   const StageSink& sink) {
  require_names_of_their_own(kernels);
  if (sink) {
    for (const Kernel& kernel : kernels) show_stages(kernel, target, sink);
  }
  KernelModule module = host_module(kernels, target, /*keep_names=*/false);
  module.optimize();
  return std::make_shared<LinkedCode>(make_linker(target), kernels, module.object());
}

std::string host_text(const Kernel& kernel, const HostTarget& target, std::string_view stage) {
  KernelModule module = host_module({&kernel, 1}, target, /*keep_names=*/true);
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
