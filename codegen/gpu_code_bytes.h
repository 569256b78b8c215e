// GpuCode as bytes, for files: everything that a launch needs, so that who reads them needs no
// compiler.
#pragma once

#include <string>
#include <string_view>

#include "codegen/compile.h"

namespace tenon::codegen {

std::string to_bytes(const GpuCode& code);
// Throws UserError for bytes that to_bytes() does not write. What it takes of memory is bounded by
// theirs.
GpuCode gpu_code_from_bytes(std::string_view bytes);

// Whether code whose source may have been another is launched with this kernel's parameters.
bool fits(const GpuCode& code, const Kernel& kernel);

}  // namespace tenon::codegen
