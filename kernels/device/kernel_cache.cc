#include "kernels/device/kernel_cache.h"

#include <fmt/format.h>

#include "base/build_id.h"
#include "codegen/llvm/version.h"

namespace tenon::device {

std::string compiler_build() {
  static const std::string build =
      fmt::format("{} LLVM {}", build_id(reinterpret_cast<const void*>(&compiler_build)),
                  codegen::llvm_version());
  return build;
}

}  // namespace tenon::device
