// Puts PTX through the assembler that is pinned for tests, and what comes out through the
// disassembler.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include "codegen/compile.h"
#include "tests/codegen/machine_code.h"

namespace tenon::codegen {

// What the assembler says when it runs asynchronous products one after the other, or ignores how
// registers are dealt: right, and several times slower.
inline constexpr const char* kComplaints = "C75[0-9][0-9]|Performance Loss";

// A tool that scripts/setup.sh brought, or nothing.
inline std::string tool(const char* variable, const char* otherwise) {
  const char* named = std::getenv(variable);
  std::string path = named ? named : otherwise;
  return std::filesystem::exists(path) ? path : "";
}
inline std::string assembler() { return tool("TENON_PTXAS", TENON_PTXAS); }
inline std::string disassembler() { return tool("TENON_NVDISASM", TENON_NVDISASM); }

struct Output {
  int status = 0;
  std::string text;
};

inline Output run_tool(const std::string& command) {
  Output out;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> line{};
  while (fgets(line.data(), line.size(), pipe)) out.text += line.data();
  out.status = pclose(pipe);
  return out;
}

inline bool has(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

struct Assembled {
  int status = 0;
  std::string report;

  int registers() const {
    std::smatch found;
    std::regex_search(report, found, std::regex("Used ([0-9]+) registers"));
    return found.empty() ? 0 : std::stoi(found.str(1));
  }
  bool keeps_to_registers() const {
    return has(report, "[^0-9]0 bytes stack frame, 0 bytes spill stores");
  }
};

// A kernel whose asynchronous products race with other instructions does not count as assembled.
inline Assembled assemble(const GpuCode& code, const std::string& arch) {
  namespace fs = std::filesystem;
  fs::path folder = fs::temp_directory_path() / ("tenon_ptx_" + std::to_string(getpid()));
  fs::create_directories(folder);
  const std::string ptx = folder / "kernel.ptx", cubin = folder / "kernel.cubin";
  std::ofstream(ptx) << code.ptx;
  const Output made = run_tool(assembler() + " -v -arch=" + arch + " -o " + cubin + " " + ptx);
  Assembled out{made.status, made.text};
  if (out.status == 0 && code.ptx.find("wgmma.mma_async") != std::string::npos) {
    const Output listing = run_tool(disassembler() + " -c " + cubin);
    out.status = listing.status;
    if (listing.status != 0) out.report += "\nthe disassembler failed: " + listing.text;
    for (const std::string& hazard : hazards_in(listing.text)) {
      out.status = 1;
      out.report += "\n" + hazard;
    }
    if (products_in(listing.text) == 0) {
      out.status = 1;
      out.report += "\nthe listing has no product: has its form changed?";
    }
  }
  fs::remove_all(folder);
  return out;
}

}  // namespace tenon::codegen
