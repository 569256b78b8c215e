// PTX of the representative kernels, put through the assembler for every architecture.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>

#include "base/error.h"
#include "codegen/compile.h"
#include "codegen/tile/builder.h"
#include "codegen/tile/text.h"
#include "tests/codegen/gpu_samples.h"

namespace tenon::codegen {
namespace {

namespace fs = std::filesystem;

GpuTarget target_of(const std::string& arch) {
  GpuTarget target;
  target.arch = arch;
  target.shared_bytes = 99 << 10;  // the least of all
  return target;
}

// The assembler that scripts/setup.sh brought, or nothing.
std::string assembler() {
  const char* named = std::getenv("TENON_PTXAS");
  std::string path = named ? named : TENON_PTXAS;
  return fs::exists(path) ? path : "";
}

struct Assembled {
  int status = 0;
  std::string report;
};

Assembled assemble(const GpuCode& code, const std::string& arch) {
  fs::path folder = fs::temp_directory_path() / ("tenon_ptx_" + std::to_string(getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "kernel.ptx") << code.ptx;
  std::string command = assembler() + " -v -arch=" + arch + " -o " +
                        (folder / "kernel.cubin").string() + " " +
                        (folder / "kernel.ptx").string() + " 2>&1";
  Assembled out;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> line{};
  while (fgets(line.data(), line.size(), pipe)) out.report += line.data();
  out.status = pclose(pipe);
  fs::remove_all(folder);
  return out;
}

TEST(PtxTest, EveryKernelAssemblesForEveryArchitecture) {
  if (assembler().empty()) {
    GTEST_SKIP() << "no assembler: scripts/setup.sh fetches nvidia-cuda-nvcc into .deps";
  }
  for (const Sample& sample : representative_samples()) {
    for (const std::string& arch : gpu_archs()) {
      GpuCode code = compile_gpu(sample.kernel, sample.threads, target_of(arch));
      Assembled assembled = assemble(code, arch);
      ASSERT_EQ(assembled.status, 0) << sample.name << " " << arch << "\n" << assembled.report;
      EXPECT_NE(assembled.report.find("0 bytes spill stores"), std::string::npos)
          << sample.name << " " << arch << "\n"
          << assembled.report;
      std::smatch registers;
      std::regex_search(assembled.report, registers, std::regex("Used ([0-9]+) registers"));
      if (arch == "sm_90a") {
        printf("%-32s %4s registers %6lld bytes shared\n", sample.name.c_str(),
               registers.str(1).c_str(), static_cast<long long>(code.shared_bytes));
      }
    }
  }
}

TEST(PtxTest, EveryOperationCompiles) {
  for (const Sample& sample : operation_samples()) {
    GpuTarget target = target_of("sm_90a");
    GpuCode code;
    ASSERT_NO_THROW(code = compile_gpu(sample.kernel, sample.threads, target)) << sample.name;
    EXPECT_NE(code.ptx.find(".entry " + code.entry), std::string::npos) << sample.name;
  }
}

}  // namespace
}  // namespace tenon::codegen
