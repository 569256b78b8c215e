#include "codegen/llvm/processor_name.h"

#include <llvm/ADT/StringRef.h>
#include <llvm/TargetParser/Host.h>

#include <sstream>
#include <string_view>

namespace tenon::codegen {
namespace {

// The first line's value whose key is this.
std::string value_of(std::string_view key, const std::string& cpuinfo) {
  std::istringstream lines(cpuinfo);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

std::string processor_name(const std::string& cpuinfo) {
  if (std::string name = value_of("model name", cpuinfo); !name.empty()) return name;
  const std::string part = value_of("CPU part", cpuinfo);
  if (part.empty()) return "";
  const std::string name = llvm::sys::detail::getHostCPUNameForARM(cpuinfo).str();
  if (name != "generic") return name;
  return "CPU " + value_of("CPU implementer", cpuinfo) + " " + part;
}

}  // namespace tenon::codegen
