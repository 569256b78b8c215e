// Compiled kernels by content, shared by all sessions of this process and kept after their end: a
// model that was open before costs no compiler.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/disk_cache.h"
#include "base/hash.h"
#include "codegen/compile.h"

namespace tenon::kernels {

template <typename Code>
struct Compiled {
  std::shared_ptr<const Code> code;  // under the name that its first compiler gave it
  double milliseconds = 0;           // spent here: compiling, or waiting for who did
  bool is_shared = false;            // someone else compiled it
};

// Like codegen::compile_gpu, or out of `cache`. Dumps want every stage: with a sink the kernel is
// compiled anew.
Compiled<codegen::GpuCode> compile_gpu_once(const codegen::Kernel& kernel, const Digest& content,
                                            int threads, const codegen::GpuTarget& target,
                                            const codegen::StageSink& sink = {},
                                            DiskCache* cache = nullptr);

struct HostKernel {
  std::shared_ptr<codegen::HostCode> code;
  codegen::HostFunction function = nullptr;
};
// The same for the host, in one go: what LLVM sets up is set up once for all of them. They have
// names of their own. Each one's milliseconds are its share, by the operations that it has.
std::vector<Compiled<HostKernel>> compile_host_once(std::span<const codegen::Kernel> kernels,
                                                    std::span<const Digest> contents,
                                                    const codegen::HostTarget& target,
                                                    const codegen::StageSink& sink = {});

// Before the library goes. What sessions still hold stays theirs.
void forget_compiled_kernels();

}  // namespace tenon::kernels
