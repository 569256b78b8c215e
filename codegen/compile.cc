#include "codegen/compile.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "codegen/layout_inference/solve.h"
#include "codegen/llvm/gpu_machine.h"
#include "codegen/llvm/host_jit.h"
#include "codegen/passes/expand_math.h"
#include "codegen/tile/text.h"
#include "codegen/tile/verify.h"

namespace tenon::codegen {

namespace {

constexpr std::string_view kProgramBegins = "// tile program\n", kProgramEnds = "// end\n";
constexpr int kMaxThreads = 1024;

void require_valid(const Kernel& kernel) {
  if (Support support = verify(kernel); !support) throw InternalError(support.reason);
}

void show_layouts(const Kernel& kernel, int threads, const StageSink& sink) {
  const System system = constraints_of(kernel, threads);
  const std::vector<Layout> layouts = solve(system);
  sink(kernel.name, "tile.constraints", priced(system, layouts));
  sink(kernel.name, "tile.layouts", print(kernel, [&](ValueId id) {
         const Layout& layout = layouts[static_cast<size_t>(id)];
         return fmt::format("{}, {} registers", layout.text(), layout.registers());
       }));
}

}  // namespace

// tile -> tile.expanded -> llvm -> llvm.optimized -> machine code
std::shared_ptr<HostCode> compile_host(std::span<const Kernel> kernels, const HostTarget& target,
                                       const StageSink& sink) {
  std::vector<Kernel> expanded;
  for (const Kernel& kernel : kernels) {
    require_valid(kernel);
    if (sink) sink(kernel.name, "tile", print(kernel));
    expanded.push_back(expand_math(kernel));
    if (sink) sink(kernel.name, "tile.expanded", print(expanded.back()));
  }
  return jit_host(expanded, target, sink);
}

std::string compile_to_text(const Kernel& kernel, const HostTarget& target,
                            std::string_view stage) {
  require_valid(kernel);
  if (stage == "tile") return print(kernel);
  Kernel expanded = expand_math(kernel);
  if (stage == "tile.expanded") return print(expanded);
  return host_text(expanded, target, stage);
}

GpuCode compile_gpu(const Kernel& kernel, int threads, const GpuTarget& target,
                    const StageSink& sink) {
  require_valid(kernel);
  if (threads < kWarp || threads > kMaxThreads || threads % kWarp != 0) {
    throw InternalError(
        fmt::format("kernel @{}: a CTA has 32, 64, … 1024 threads, not {}", kernel.name, threads));
  }
  std::string program = print(kernel);
  if (sink) sink(kernel.name, "tile", program);
  Kernel expanded = expand_math(kernel, gpu_math(target.arch));
  if (sink) {
    sink(kernel.name, "tile.expanded", print(expanded));
    show_layouts(expanded, threads, sink);
  }
  PtxText ptx = emit_ptx(expanded, threads, target, sink);
  std::string text{kProgramBegins};
  for (size_t begin = 0; begin < program.size();) {
    size_t end = std::min(program.find('\n', begin), program.size());
    text += fmt::format("// {}\n", std::string_view(program).substr(begin, end - begin));
    begin = end + 1;
  }
  text += kProgramEnds;
  text += ptx.text;
  if (sink) sink(kernel.name, "asm", text);
  return {kernel.name,      std::move(text),     ptx.threads,
          ptx.shared_bytes, ptx.tma_descriptors, ptx.pdl};
}

std::string tile_program(std::string_view ptx) {
  if (!ptx.starts_with(kProgramBegins)) {
    throw UserError("this PTX does not begin with its tile program");
  }
  std::string out;
  for (size_t begin = kProgramBegins.size(); begin < ptx.size();) {
    std::string_view rest = ptx.substr(begin);
    if (rest.starts_with(kProgramEnds)) return out;
    std::string_view line = rest.substr(0, rest.find('\n'));
    if (!line.starts_with("// ")) break;
    out += fmt::format("{}\n", line.substr(3));
    begin += line.size() + 1;
  }
  throw UserError("the tile program in this PTX has no end");
}

}  // namespace tenon::codegen
