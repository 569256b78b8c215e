// What must hold of a program before anybody runs it. Launches get raw pointers: a program that
// came from a file is checked first.
#pragma once

#include "codegen/tile/ir.h"
#include "kernels/running/program.h"

namespace tenon::kernels {

// Indices are in range, every size follows from the inputs, constants have their bytes (unless
// `weights` is false) and launches on a GPU wait for each other. Throws UserError saying what does
// not hold.
void check_program(const Program& program, bool on_gpu, bool weights = true);

// Whether the launch brings what the kernel takes, and nothing to write to that is a constant or
// the caller's input.
void check_kernel(const codegen::Kernel& kernel, const CompiledLaunch& launch,
                  std::span<const Slot> slots);
void check_kernel(const codegen::GpuCode& code, const CompiledLaunch& launch);

}  // namespace tenon::kernels
