// Launches on the host, described for the report.
#pragma once

#include <string>
#include <vector>

#include "codegen/target.h"
#include "codegen/tile/ir.h"
#include "kernels/planning/lowered.h"
#include "kernels/planning/symbol_binding.h"
#include "kernels/running/executable.h"

namespace tenon::kernels {

// "neon", "dotprod", "i8mm", "avx2", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "amx-bf16";
// "sse2" before AVX2.
std::string isa_of(const codegen::Kernel& kernel, const codegen::HostTarget& host);

// One for each launch, under the kernel's own name.
std::vector<LaunchReport> describe_launches(const Lowered& lowered, const SymbolBinding& binding,
                                            const codegen::HostTarget& host);

}  // namespace tenon::kernels
