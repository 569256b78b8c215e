// Compiles the kernels of a program: equal ones once, on several threads.
#pragma once

#include <vector>

#include "codegen/compile.h"
#include "kernels/program.h"

namespace tenon::kernels {

// kernels[i] belongs to program.launches[i]; fills in `function` there and keeps the code alive.
// Kernels of a GPU that is emulated may have no host code: those get `interpreted`.
void compile_launches(std::vector<codegen::Kernel> kernels, const Settings& settings,
                      const codegen::StageSink& sink, Program& program);

// The same for a GPU: fills in `gpu_code` of the program and of its launches.
void compile_gpu_launches(std::vector<codegen::Kernel> kernels, const codegen::GpuTarget& target,
                          const codegen::StageSink& sink, Program& program);

}  // namespace tenon::kernels
