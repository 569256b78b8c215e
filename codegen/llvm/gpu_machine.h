// Kernels as PTX.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/compile.h"

namespace tenon::codegen {

struct PtxText {
  std::string text;
  int64_t shared_bytes = 0;
  int threads = 0;
  std::vector<TmaDescriptor> tma_descriptors;
  bool pdl = false;
};

// The kernel is verified and expanded.
PtxText emit_ptx(const Kernel& kernel, int threads, const GpuTarget& target, const StageSink& sink);

// What a CTA of the kernel takes: the kernel is emitted, but neither optimised nor generated.
struct BlockPlan {
  int64_t shared_bytes = 0;
  int threads = 0;
};
BlockPlan plan_block(const Kernel& kernel, int threads, const GpuTarget& target);

}  // namespace tenon::codegen
