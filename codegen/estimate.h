// What a kernel needs of a CTA, before any code is generated: who chooses a config drops
// it here instead of hearing from the assembler that it spills.
#pragma once

#include <cstdint>
#include <vector>

#include "base/support.h"
#include "codegen/layouts.h"
#include "codegen/target.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

struct SmLimits;

// Registers of 32 bits that tiles and indices hold at the place of a kernel where most are alive.
// Elements that are dequantised for one step of a product after the other hold none.
int live_registers(const Kernel& kernel, const std::vector<Layout>& layouts, int threads);

inline constexpr int kCopyRegisters = 40;  // of threads that only copy, where they are dealt anew

// Of a thread where so many CTAs share an SM. Each of its four schedulers has a quarter of the
// registers, for whole warps.
int registers_with(const SmLimits& sm, int64_t ctas_per_sm, int threads);

// How the registers of an SM go to the threads of one CTA.
struct RegisterShare {
  int computing = 0;        // of each thread that computes
  bool dealt_anew = false;  // those that only copy give some of theirs away
};
// `copying`: threads of warpgroups that only copy.
RegisterShare share_registers(const SmLimits& sm, int live, int threads, int copying);

struct GpuEstimate {
  int64_t shared_bytes = 0;  // exactly
  int64_t shared_limit = 0;  // of a CTA
  int live_registers = 0;    // see above
  int registers = 0;         // of a thread that computes, at most
  int register_limit = 0;    // that it may have

  Support fits() const;
};

// Expands the kernel and places what it keeps in shared memory, as compile_gpu does.
GpuEstimate estimate_gpu(const Kernel& kernel, int threads, const GpuTarget& target);
// The same, once per process for equal kernels.
GpuEstimate estimate_gpu_once(const Kernel& kernel, int threads, const GpuTarget& target);

}  // namespace tenon::codegen
