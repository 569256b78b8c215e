// Kernels as LLVM modules for the processor of a host.
#pragma once

#include <span>
#include <string>

#include "codegen/llvm/kernel_module.h"
#include "codegen/target.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

// "x86_64-unknown-linux-gnu": what code for this target is called in LLVM.
std::string triple_of(const HostTarget& target);

// Emits the kernels, in one module: what LLVM sets up for a module takes as long as a small kernel.
// Throws UserError for a target whose backend is not linked in.
KernelModule host_module(std::span<const Kernel> kernels, const HostTarget& target,
                         bool keep_names);

}  // namespace tenon::codegen
