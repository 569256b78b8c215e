// Compiles the kernels of a program: equal ones once, on several threads.
#pragma once

#include <vector>

#include "base/disk_cache.h"
#include "base/hash.h"
#include "codegen/compile.h"
#include "kernels/running/program.h"

namespace tenon::kernels {

struct LaunchKernel {
  size_t launch = 0;  // of the program
  codegen::Kernel kernel;
};

// Of what lowering made: slots, launches, what each kernel says. Programs that agree in it have
// their constants in the same slots and read them in the same layouts.
Digest lowering_of(const std::vector<LaunchKernel>& kernels, const Program& program);

// Each of these fills in `kernel` of the launches, and ProgramTexts::kernels where the program has
// texts. This one `function`, too, and keeps the code alive.
void compile_launches(std::vector<LaunchKernel> kernels, const codegen::HostTarget& target,
                      const codegen::StageSink& sink, Program& program);

// The same where a GPU is emulated: fills in `interpreted`. Its tiles would take a host compiler
// minutes, and pipelines have no host code.
void interpret_launches(std::vector<LaunchKernel> kernels, const codegen::StageSink& sink,
                        Program& program);

// The same for a GPU: fills in `gpu_code` of the program. `cache`: kernels of
// other processes; null: none.
void compile_gpu_launches(std::vector<LaunchKernel> kernels, const codegen::GpuTarget& target,
                          const codegen::StageSink& sink, DiskCache* cache, Program& program);

// The same for kernels that were saved, each once: launches name them by their place.
void compile_saved_kernels(std::vector<codegen::Kernel> kernels, const codegen::HostTarget& target,
                           Program& program);
void compile_saved_gpu_kernels(std::vector<codegen::Kernel> kernels, std::vector<int> threads,
                               const codegen::GpuTarget& target, DiskCache* cache,
                               Program& program);

}  // namespace tenon::kernels
