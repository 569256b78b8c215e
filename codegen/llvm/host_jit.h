// LLVM behind plain types: expanded tile kernels in, machine code or text out.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "codegen/compile.h"

namespace tenon::codegen {

std::shared_ptr<HostCode> jit_host(std::span<const Kernel> kernels, const HostTarget& target,
                                   const StageSink& sink);

// `stage`: "llvm", "llvm.optimized" or "asm".
std::string host_text(const Kernel& kernel, const HostTarget& target, std::string_view stage);

}  // namespace tenon::codegen
