// Compiles the kernels of a program: equal ones once, on several threads.
#pragma once

#include <vector>

#include "base/disk_cache.h"
#include "codegen/compile.h"
#include "kernels/running/program.h"

namespace tenon::kernels {

struct LaunchKernel {
  size_t launch = 0;  // of the program
  codegen::Kernel kernel;
};

// Fills in `function` of the launches, and keeps the code alive.
void compile_launches(std::vector<LaunchKernel> kernels, const codegen::HostTarget& target,
                      const codegen::StageSink& sink, Program& program);

// The same where a GPU is emulated: fills in `interpreted`. Its tiles would take a host compiler
// minutes, and pipelines have no host code.
void interpret_launches(std::vector<LaunchKernel> kernels, const codegen::StageSink& sink,
                        Program& program);

// The same for a GPU: fills in `gpu_code` of the program and of its launches. `cache`: kernels of
// other processes; null: none.
void compile_gpu_launches(std::vector<LaunchKernel> kernels, const codegen::GpuTarget& target,
                          const codegen::StageSink& sink, DiskCache* cache, Program& program);

}  // namespace tenon::kernels
