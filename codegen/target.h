// What code is generated for: a plain, printable description. Nothing here touches a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tenon::codegen {

enum class HostArch { kX86_64, kAArch64 };

struct HostTarget {
  HostArch arch{};
  std::string name;                   // "Intel(R) Xeon(R) …" or what the system says
  std::vector<std::string> features;  // LLVM names, present ones only, sorted: "avx512f", "dotprod"
  int vector_bits = 128;              // widest vectors worth using
  int vector_registers = 16;
  int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20;
  int threads = 1;     // cores that this process may use
  bool tiles = false;  // many rows are worth tile_dot: AMX, or a test's wish

  bool has(const std::string& feature) const;
  int lanes_f32() const { return vector_bits / 32; }
  std::string text() const;
};

// The machine that we run on, from CPUID or AT_HWCAP (LLVM's own detection is wrong on virtual
// aarch64 machines). TENON_HOST_FEATURES=avx2 (or avx512f, neon, …) caps it for tests.
HostTarget detect_host();
// Named targets for tests and cross compiling: "x86_64-avx2", "x86_64-avx512", "aarch64-neon", ….
HostTarget host_target(const std::string& name);
std::vector<std::string> host_target_names();

// A GPU as far as code depends on it.
struct GpuTarget {
  std::string arch = "sm_90a";       // one of gpu_archs()
  int64_t shared_bytes = 227 << 10;  // that one CTA may ask for
  int sm_count = 132;
  int threads = 1024;      // that one CTA may have
  bool pipelines = false;  // kernels whose copies run ahead of the arithmetic
  // A test's wish: costs are multiplied by random factors of this seed (codegen/cost_factors.h).
  std::optional<uint64_t> cost_seed = {};

  std::string text() const;
};

// What code can be generated for: sm_80, 86, 87, 89, 90, 90a, 100a, 103a, 110a, 120a, 121a.
const std::vector<std::string>& gpu_archs();

}  // namespace tenon::codegen
