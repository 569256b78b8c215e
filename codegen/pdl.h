// Programmatic dependent launch (PDL): on a GPU that has it a kernel may begin while launches
// before it still run, and lets the next one begin as it does (griddepcontrol.launch_dependents).
// What they write is there after griddepcontrol.wait. This is where that wait stands, and what a
// kernel may touch before it. The emitter follows it; whoever orders launches relies on it.
#pragma once

#include <vector>

#include "codegen/target.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

struct BufferTouch {
  bool read = false, written = false;
  bool fetched = false;      // by a pipeline's copies
  bool before_wait = false;  // perhaps before griddepcontrol.wait
};

struct Pdl {
  enum class Wait : uint8_t {
    kNone,   // no PDL: it is launched after everything before it, and launches no dependents
    kFirst,  // before anything, but that copies of what is constant are on their way
    kLate,   // before the first access to what is neither constant nor its own
  };
  Wait wait = Wait::kNone;
  // A grid whose CTAs store something waits, for one of them does: who waits for its end has
  // waited for the launches before it as well. One that stores nothing late may end before them.
  bool always_waits = true;
  std::vector<BufferTouch> parameters;  // of indices: nothing

  bool is_used() const { return wait != Wait::kNone; }
};

// Whether code for the GPU uses PDL at all.
bool has_pdl(const GpuTarget& target);

// On a GPU that has it.
Pdl pdl_of(const Kernel& kernel);

}  // namespace tenon::codegen
