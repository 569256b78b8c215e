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

// Receives every stage of every kernel: ("row_sum", "tile" | "tile.expanded" | "tile.constraints",
// "tile.layouts" (on a GPU) | "llvm" | "llvm.optimized" | "products_in_flight" (of wgmma) | "asm",
// text). Whoever orders launches adds ("program", "launch_dependencies", table). Empty: no dumps.
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

// A matrix that TMA reads in boxes: the driver encodes it into a parameter of 128 bytes (CUDA's
// CUtensorMap) when the kernel is launched. Columns are contiguous; what lies outside reads as
// zero.
struct TmaDescriptor {
  struct Size {
    int parameter = -1;  // of the tile kernel, an index; -1: `constant`
    int64_t constant = 0;
  };
  int buffer = 0;  // parameter of the tile kernel
  DType dtype{};
  Size rows, columns, stride;  // stride: elements from row to row, a multiple of 16 bytes
  int box_rows = 0, box_columns = 0;
  int groups = 0;         // boxes side by side that one copy takes; 0: one, anywhere
  bool swizzled = false;  // by the width of a box's row, 128 bytes at most
  bool tf32 = false;      // f32 that is rounded as it is copied
};

// A kernel as PTX. It is launched as a grid of one CTA per task; its parameters are those of the
// tile kernel in order, a pointer for a buffer and a 64-bit integer for an index, then the TMA
// descriptors.
struct GpuCode {
  std::string entry;  // the kernel's name in the text
  std::string ptx;    // begins with the tile program in comments
  int threads = 0;    // of a CTA; more than asked for where some only copy
  int64_t shared_bytes = 0;
  std::vector<TmaDescriptor> tma_descriptors;
  // Programmatic dependent launch: it waits itself for the previous launch. Launch it with
  // programmatic stream serialization.
  bool pdl = false;
  // Of the PTX for the target's architecture, where that was saved; else made when it is loaded.
  std::string machine_code = {};
};

// Deals the elements of every tile over the threads of a CTA. Thread-safe; LLVM's fatal errors
// become InternalError, and a kernel that needs more shared memory than a CTA gets a UserError.
GpuCode compile_gpu(const Kernel& kernel, int threads, const GpuTarget& target,
                    const StageSink& sink = {});

// The tile program that compile_gpu put into the comments of a PTX text: who has no GPU runs that.
std::string tile_program(std::string_view ptx);

}  // namespace tenon::codegen
