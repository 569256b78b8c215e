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
  std::vector<MatrixMap> maps;
  bool begins_early = false;
};

// The kernel is verified and expanded.
PtxText emit_ptx(const Kernel& kernel, int threads, const GpuTarget& target, const StageSink& sink);

}  // namespace tenon::codegen
