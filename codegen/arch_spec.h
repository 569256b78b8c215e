// What is known of each GPU architecture that code is generated for: one row each, in arch_spec.cc.
// Nobody else compares names of architectures; who wants to know something asks for its field.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "codegen/gpu_costs.h"

namespace tenon::codegen {

// Instructions, by what the assembler accepts.
struct GpuFeatures {
  bool exp2 = false;                                     // ex2.approx.f32
  bool f16_arithmetic = false, bf16_arithmetic = false;  // add, sub, mul
  bool fp8_conversions = false, fp4_conversions = false;
  bool stmatrix = false;
  bool pdl = false;  // griddepcontrol
  bool tma = false;  // cp.async.bulk.tensor, and barriers that count its bytes
  bool clusters = false;
  bool setmaxnreg = false;
  bool wgmma = false;
  bool block_scaled_mma = false;  // mma.sync or tcgen05.mma with scales as operands
  bool tensor_memory = false;     // tcgen05

  bool operator==(const GpuFeatures&) const = default;
};

struct SmLimits {
  int64_t shared_bytes_per_cta, shared_bytes;
  int registers;  // of 32 bits
  int threads;
};

struct ArchSpec {
  std::string_view name;    // "sm_100a"
  const char* ptx;          // version of the text: "8.8"
  const char* emitted_as;   // what LLVM is asked for
  const char* emitted_ptx;  // as a feature of LLVM
  int compute_major, compute_minor;
  bool runs_later;   // its code is taken for GPUs that have no row: all later ones run it
  GpuFeatures has;   // the GPU
  GpuFeatures uses;  // of those, generated code: the emitter and the kernels ask for these only
  SmLimits sm;
  const GpuCosts* costs;

  // Pipelines whose copies have warps of their own. The emitter has that as a whole or not at all:
  // TMA fills stages, wgmma reads them, registers go from one role to the other, and the next
  // launch begins meanwhile.
  bool specialises_warps() const { return uses.tma && uses.wgmma && uses.setmaxnreg && uses.pdl; }
  // Else `costs` are those of another architecture, extrapolated: costs->source says how.
  bool has_measured_costs() const { return name == costs->source.arch; }
};

std::span<const ArchSpec> arch_specs();
const ArchSpec& arch_spec(std::string_view name);  // throws UserError with the list
// The best row for a GPU of this compute capability, from 8.0 on. Where no row has the same numbers
// it is the newest whose code later GPUs run.
const ArchSpec& arch_spec_of_device(int compute_major, int compute_minor);

struct MathInstructions;
MathInstructions gpu_math(std::string_view arch);

}  // namespace tenon::codegen
