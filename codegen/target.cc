#include "codegen/target.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>

#include "base/error.h"
#include "codegen/llvm/processor_name.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#else
#include <sys/syscall.h>
#endif

namespace tenon::codegen {

namespace {

struct Level {
  HostArch arch;
  int vector_bits, vector_registers;
  std::vector<std::string> features;  // sorted
};

// What a processor of each kind is known to have; names as in LLVM.
const std::map<std::string, Level>& levels() {
  static const std::vector<std::string> kAvx2 = {
      "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2", "ssse3"};
  auto with = [](std::vector<std::string> base, std::initializer_list<const char*> more) {
    base.insert(base.end(), more.begin(), more.end());
    std::ranges::sort(base);
    return base;
  };
  static const std::vector<std::string> kAvx512 =
      with(kAvx2, {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"});
  static const std::vector<std::string> kNeon = {"neon"};
  static const std::map<std::string, Level> kLevels = {
      {"avx2", {HostArch::kX86_64, 256, 16, kAvx2}},
      {"avxvnni", {HostArch::kX86_64, 256, 16, with(kAvx2, {"avxvnni"})}},
      {"avx512", {HostArch::kX86_64, 512, 32, kAvx512}},
      {"avx512vnni", {HostArch::kX86_64, 512, 32, with(kAvx512, {"avx512vnni"})}},
      {"amx", {HostArch::kX86_64, 512, 32, with(kAvx512, {"amx-bf16", "amx-tile", "avx512vnni"})}},
      {"neon", {HostArch::kAArch64, 128, 32, kNeon}},
      {"dotprod", {HostArch::kAArch64, 128, 32, with(kNeon, {"dotprod"})}},
      {"i8mm", {HostArch::kAArch64, 128, 32, with(kNeon, {"bf16", "dotprod", "fullfp16", "i8mm"})}},
  };
  return kLevels;
}

std::string level_names(HostArch arch) {
  std::vector<std::string> names;
  for (const auto& [name, level] : levels()) {
    if (level.arch == arch) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

#if defined(__x86_64__)
constexpr HostArch kThisArch = HostArch::kX86_64;

std::vector<std::string> detect_features() {
  std::vector<std::string> found;
  __builtin_cpu_init();
// The builtin takes literals only. It asks the operating system about wide registers as well.
#define TENON_DETECT(name) \
  if (__builtin_cpu_supports(name)) found.emplace_back(name)
  TENON_DETECT("amx-bf16");
  TENON_DETECT("amx-tile");
  TENON_DETECT("avx");
  TENON_DETECT("avx2");
  TENON_DETECT("avx512bw");
  TENON_DETECT("avx512cd");
  TENON_DETECT("avx512dq");
  TENON_DETECT("avx512f");
  TENON_DETECT("avx512vl");
  TENON_DETECT("avx512vnni");
  TENON_DETECT("avxvnni");
  TENON_DETECT("bmi");
  TENON_DETECT("bmi2");
  TENON_DETECT("f16c");
  TENON_DETECT("fma");
  TENON_DETECT("lzcnt");
  TENON_DETECT("movbe");
  TENON_DETECT("popcnt");
  TENON_DETECT("sse4.2");
  TENON_DETECT("ssse3");
#undef TENON_DETECT
  // Kernels use 512-bit vectors of every element type, or none.
  bool whole = true;
  for (const std::string& feature : levels().at("avx512").features) {
    whole &= std::ranges::count(found, feature) > 0 || !feature.starts_with("avx512");
  }
  if (!whole) std::erase_if(found, [](const std::string& f) { return f.starts_with("avx512"); });
  return found;
}

// Linux gives a process the tiles' 8 KiB of state only when asked. What it refuses is not there.
void ask_for_tiles(HostTarget& target) {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  const bool whole = target.has("amx-tile") && target.has("amx-bf16") && target.has("avx512f");
  if (whole && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return;
  std::erase_if(target.features, [](const std::string& f) { return f.starts_with("amx-"); });
}
#else
constexpr HostArch kThisArch = HostArch::kAArch64;

std::vector<std::string> detect_features() {
  std::vector<std::string> found = {"neon"};
  unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  if (first & HWCAP_ASIMDDP) found.emplace_back("dotprod");
  if ((first & HWCAP_ASIMDHP) && (first & HWCAP_FPHP)) found.emplace_back("fullfp16");
  if (second & HWCAP2_I8MM) found.emplace_back("i8mm");
  if (second & HWCAP2_BF16) found.emplace_back("bf16");
  return found;
}

void ask_for_tiles(HostTarget&) {}
#endif

std::string this_processor() {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (std::string name = processor_name(text); !name.empty()) return name;
  return kThisArch == HostArch::kX86_64 ? "x86_64" : "aarch64";
}

int64_t cache_size(int name, int64_t otherwise) {
  long bytes = sysconf(name);
  return bytes > 0 ? bytes : otherwise;
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

void set_vectors(HostTarget& target) {
  bool wide = target.has("avx512f"), x86 = target.arch == HostArch::kX86_64;
  target.vector_bits = wide ? 512 : target.has("avx2") ? 256 : 128;
  target.vector_registers = wide || !x86 ? 32 : 16;
  target.tiles = target.has("amx-bf16");
}

// Keeps what both the machine and the named level have.
void cap(HostTarget& target, const std::string& level) {
  std::string known = level == "avx512f" ? "avx512" : level;
  auto found = levels().find(known);
  if (found == levels().end() || found->second.arch != target.arch) {
    throw UserError(fmt::format("TENON_HOST_FEATURES is '{}'; choose one of {}", level,
                                level_names(target.arch)));
  }
  std::erase_if(target.features, [&](const std::string& feature) {
    return std::ranges::count(found->second.features, feature) == 0;
  });
}

}  // namespace

bool HostTarget::has(const std::string& feature) const {
  return std::ranges::count(features, feature) > 0;
}

std::string HostTarget::text() const {
  return fmt::format("{} ({}): {}-bit vectors, {} registers, L1 {} KiB, L2 {} KiB, {} threads, {}",
                     arch == HostArch::kX86_64 ? "x86_64" : "aarch64", name, vector_bits,
                     vector_registers, l1_bytes >> 10, l2_bytes >> 10, threads,
                     fmt::join(features, " "));
}

HostTarget detect_host() {
  HostTarget target;
  target.arch = kThisArch;
  target.name = this_processor();
  target.features = detect_features();
  std::ranges::sort(target.features);
  if (const char* level = std::getenv("TENON_HOST_FEATURES"); level && *level) cap(target, level);
  ask_for_tiles(target);
  set_vectors(target);
  target.l1_bytes = cache_size(_SC_LEVEL1_DCACHE_SIZE, target.l1_bytes);
  target.l2_bytes = cache_size(_SC_LEVEL2_CACHE_SIZE, target.l2_bytes);
  target.threads = usable_cores();
  return target;
}

HostTarget host_target(const std::string& name) {
  std::string prefixes[] = {"x86_64-", "aarch64-"};
  for (const std::string& prefix : prefixes) {
    if (!name.starts_with(prefix)) continue;
    auto found = levels().find(name.substr(prefix.size()));
    bool x86 = prefix == prefixes[0];
    HostArch arch = x86 ? HostArch::kX86_64 : HostArch::kAArch64;
    if (found == levels().end() || found->second.arch != arch) break;
    HostTarget target;
    target.arch = arch;
    target.name = name;
    target.features = found->second.features;
    set_vectors(target);
    return target;
  }
  throw UserError(fmt::format("no target is called '{}': choose x86_64-{{{}}} or aarch64-{{{}}}",
                              name, level_names(HostArch::kX86_64),
                              level_names(HostArch::kAArch64)));
}

std::vector<std::string> host_target_names() {
  std::vector<std::string> names;
  for (const auto& [name, level] : levels()) {
    names.push_back((level.arch == HostArch::kX86_64 ? "x86_64-" : "aarch64-") + name);
  }
  return names;
}

std::string GpuTarget::text() const {
  return fmt::format("{}: {} SMs, {} KiB of shared memory per CTA", arch, sm_count,
                     shared_bytes >> 10);
}

}  // namespace tenon::codegen
