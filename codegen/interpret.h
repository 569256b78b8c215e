// Runs a tile kernel operation by operation, without generating code: what every kernel means. Used
// for kernels whose tiles are as large as a GPU's, which would take a host compiler minutes, and as
// the judge of what the emitters make. Pipelines run as far ahead as their rings allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codegen/tile/ir.h"

namespace tenon::codegen {

// The memory behind a kernel's buffers, where PDL lets launches overlap: what it sees of it, and
// what it does to it. `before_wait`: as pdl.h says.
class LaunchMemory {
 public:
  virtual ~LaunchMemory() = default;
  virtual void begin_task() = 0;
  virtual void wait() = 0;  // griddepcontrol.wait of the task
  // What [from, from + bytes) looks like; until the next call.
  virtual const std::byte* read(const std::byte* from, size_t bytes, bool before_wait) = 0;
  virtual void write(std::byte* to, size_t bytes, bool before_wait) = 0;  // is about to happen
};

// Tasks [first, last), buffers and indices in parameter order as for compiled kernels. Floats are
// rounded to their type after every operation. A stage that is read before it was fetched, or past
// its end, is an InternalError that names the operation.
void interpret(const Kernel& kernel, std::span<void* const> buffers,
               std::span<const int64_t> indices, int64_t first, int64_t last,
               LaunchMemory* memory = nullptr);

// True for kernels that only interpret() can run on a host.
bool needs_interpreter(const Kernel& kernel);

}  // namespace tenon::codegen
