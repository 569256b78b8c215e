// Puts PTX through the assembler that is pinned for tests.
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

namespace tenon::codegen {

// What the assembler says when it runs asynchronous products one after the other, or ignores how
// registers are dealt: right, and several times slower.
inline constexpr const char* kComplaints = "C75[0-9][0-9]|Performance Loss";

// The assembler that scripts/setup.sh brought, or nothing.
inline std::string assembler() {
  const char* named = std::getenv("TENON_PTXAS");
  std::string path = named ? named : TENON_PTXAS;
  return std::filesystem::exists(path) ? path : "";
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

inline Assembled assemble(const GpuCode& code, const std::string& arch) {
  namespace fs = std::filesystem;
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

}  // namespace tenon::codegen
