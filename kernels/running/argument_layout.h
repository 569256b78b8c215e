// The arguments of all launches of a program on a device as one row of words: where each comes
// from, and which of them are addresses of the caller's.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/running/program.h"

namespace tenon::kernels {

struct ArgumentLayout {
  // A slot's address, or a number of the instance.
  struct Argument {
    bool is_slot = false;
    size_t index = 0;  // slot, or position in ShapeInstance::indices
  };
  // A slot whose memory the caller brings.
  struct Caller {
    size_t slot;
    bool is_input;
    size_t index;  // of the graph's input or output
  };
  struct Patch {
    size_t position, caller;
  };
  // A caller's buffer that a launch's copies read.
  struct Fetch {
    size_t launch, number;  // in CompiledLaunch::fetched
    Patch patch;
  };

  explicit ArgumentLayout(const Program& program);

  std::vector<Caller> callers;      // inputs and outputs
  std::vector<Argument> arguments;  // of all launches, one launch after the other
  std::vector<Patch> patches;       // arguments that are the caller's addresses
  std::vector<Fetch> fetches;       // those that copies read, in the order of launches

 private:
  void add_fetches(const Program& program);
};

}  // namespace tenon::kernels
