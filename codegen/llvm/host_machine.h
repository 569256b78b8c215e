// Kernels as LLVM modules for the processor of a host.
#pragma once

#include <string>

#include "codegen/llvm/kernel_module.h"
#include "codegen/target.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

// "x86_64-unknown-linux-gnu": what code for this target is called in LLVM.
std::string triple_of(const HostTarget& target);

// Emits the kernel. Throws UserError for a target whose backend is not linked in.
KernelModule host_module(const Kernel& kernel, const HostTarget& target, bool keep_names);

}  // namespace tenon::codegen
