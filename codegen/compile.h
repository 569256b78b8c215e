// Read first: tile kernels in, callable host code (or text of any stage) out. Touches no device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/target.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

using HostFunction = void (*)(void* const* buffers, const int64_t* indices, int64_t first,
                              int64_t last);

// Receives every stage of every kernel: ("row_sum", "tile" | "tile.expanded" | "llvm" |
// "llvm.optimized" | "asm", text). Empty function: no dumps are made.
using StageSink =
    std::function<void(std::string_view kernel, std::string_view stage, std::string_view text)>;

// Machine code of some kernels; functions live as long as this.
class HostCode {
 public:
  virtual ~HostCode() = default;
  virtual HostFunction function(std::string_view kernel) const = 0;  // throws InternalError
};

// Thread-safe. LLVM's fatal errors become InternalError. Kernel names must differ.
std::shared_ptr<HostCode> compile_host(std::span<const Kernel> kernels, const HostTarget& target,
                                       const StageSink& sink = {});

// Text of one stage for a target that need not be this machine ("llvm", "asm"): golden tests.
std::string compile_to_text(const Kernel& kernel, const HostTarget& target, std::string_view stage);

}  // namespace tenon::codegen
