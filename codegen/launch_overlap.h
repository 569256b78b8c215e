// Programmatic dependent launch: on a GPU that has it a kernel may begin while launches before it
// still run, and lets the next one begin as it does (griddepcontrol.launch_dependents). What they
// write is there after griddepcontrol.wait. This is where that wait stands, and what a kernel may
// touch before it. The emitter follows it; whoever orders launches relies on it.
#pragma once

#include <vector>

#include "codegen/target.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

struct BufferTouch {
  bool read = false, written = false;
  bool fetched = false;  // by a pipeline's copies
  bool early = false;    // perhaps before the wait
};

struct LaunchOverlap {
  enum class Wait : uint8_t {
    kNone,   // it is launched after everything before it, and lets nobody begin early
    kFirst,  // before anything, but that copies of what is constant are on their way
    kLate,   // before the first access to what is neither constant nor its own
  };
  Wait wait = Wait::kNone;
  // A grid whose blocks store something waits, for one of them does: who waits for its end has
  // waited for the launches before it as well. One that stores nothing late may end before them.
  bool always_waits = true;
  std::vector<BufferTouch> parameters;  // of indices: nothing

  bool begins_early() const { return wait != Wait::kNone; }
};

// Whether code for the GPU overlaps launches at all.
bool overlaps_launches(const GpuTarget& target);

// On a GPU that does.
LaunchOverlap launch_overlap(const Kernel& kernel);

}  // namespace tenon::codegen
