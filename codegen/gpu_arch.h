// The architectures that code is generated for, and what LLVM calls them.
#pragma once

#include <string>
#include <string_view>

namespace tenon::codegen {

struct GpuArch {
  const char* name;         // "sm_100a"
  const char* ptx;          // version of the text: "8.8"
  const char* emitted_as;   // what LLVM is asked for
  const char* emitted_ptx;  // as a feature of LLVM
};

struct MathInstructions;
MathInstructions gpu_math(std::string_view arch);

const GpuArch& gpu_arch(std::string_view name);  // throws UserError with the list

}  // namespace tenon::codegen
