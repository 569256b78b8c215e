#include "codegen/llvm/version.h"

#include <llvm/Config/llvm-config.h>

namespace tenon::codegen {

std::string_view llvm_version() { return LLVM_VERSION_STRING; }

}  // namespace tenon::codegen
