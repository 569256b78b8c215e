// What a CPU is called, from the text of /proc/cpuinfo.
#pragma once

#include <string>

namespace tenon::codegen {

// "Intel(R) Xeon(R) …" as x86_64 systems say it; an Arm core by the name that LLVM knows for its
// numbers ("neoverse-n1"), and where it knows none, by these. Empty: the text tells nothing.
std::string processor_name(const std::string& cpuinfo);

}  // namespace tenon::codegen
