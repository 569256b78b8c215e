#include "codegen/compile.h"

#include <fmt/format.h>

#include "base/error.h"
#include "codegen/llvm/host_jit.h"
#include "codegen/passes/expand_math.h"
#include "codegen/tile/text.h"
#include "codegen/tile/verify.h"

namespace tenon::codegen {

namespace {

void require_valid(const Kernel& kernel) {
  if (Support support = verify(kernel); !support) throw InternalError(support.reason);
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

}  // namespace tenon::codegen
