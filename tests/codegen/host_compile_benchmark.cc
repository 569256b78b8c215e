// What it takes to compile the kernels of a dump_dir for this host, all in one go as a session with
// one thread does it, and each by itself: CPU time, the least of some times. A benchmark, not a
// test: run build/…/bin/host_compile_benchmark FOLDER [times]. On a busy machine
//   valgrind --tool=cachegrind --cache-sim=no … FOLDER 0
// counts the instructions of the first alone; valgrind knows no AVX-512, so the target is named:
// TENON_HOST_TARGET=x86_64-avx512.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "codegen/compile.h"
#include "codegen/target.h"
#include "codegen/tile/text.h"

namespace tenon::codegen {
namespace {

double cpu_milliseconds(const std::function<void()>& run) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
  };
  const double start = now();
  run();
  return now() - start;
}

double least(int times, const std::function<void()>& run) {
  double milliseconds = std::numeric_limits<double>::infinity();
  for (int i = 0; i < std::max(times, 1); ++i) {
    milliseconds = std::min(milliseconds, cpu_milliseconds(run));
  }
  return milliseconds;
}

// Partitions may use one name twice.
std::vector<Kernel> kernels_of(const std::filesystem::path& folder) {
  std::vector<Kernel> kernels;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.path().string().ends_with(".tile.txt")) continue;
    std::ifstream file(entry.path());
    kernels.push_back(parse(std::string(std::istreambuf_iterator<char>(file), {})));
    kernels.back().name += fmt::format("_{}", kernels.size());
  }
  std::ranges::sort(kernels, {}, &Kernel::name);
  return kernels;
}

int run(const std::filesystem::path& folder, int times) {
  const char* named = std::getenv("TENON_HOST_TARGET");
  const HostTarget target = named == nullptr ? detect_host() : host_target(named);
  const std::vector<Kernel> kernels = kernels_of(folder);
  fmt::print("{:8.1f} ms  {} kernels in one go\n",
             least(times, [&] { compile_host(kernels, target); }), kernels.size());
  if (times == 0) return 0;
  for (const Kernel& kernel : kernels) {
    fmt::print("{:8.1f} ms  {}\n",
               least(times,
                     [&] {
                       compile_host({&kernel, 1}, target);
                     }),
               kernel.name);
  }
  return 0;
}

}  // namespace
}  // namespace tenon::codegen

int main(int count, char** arguments) {
  if (count < 2) {
    std::fputs("host_compile_benchmark FOLDER [times]: which dump_dir?\n", stderr);
    return 2;
  }
  return tenon::codegen::run(arguments[1], count > 2 ? std::atoi(arguments[2]) : 5);
}
