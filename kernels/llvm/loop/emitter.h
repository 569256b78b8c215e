// Writes the tile kernel of a loop problem after its schedule.
#pragma once

#include <memory>

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/loop/problem.h"
#include "kernels/llvm/tile_types.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

// Whether the ops, types and sub-byte stores of the problem can be emitted.
Support supports_problem(const LoopProblem& problem, const Settings& settings);
Launch emit_loop(const LoopProblem& problem, const Settings& settings);

class LoopEmitter;

// Rows of a loop that reduces whole rows, computed inside of a kernel that has other work: a norm
// before a product. The same code as the loop's own kernel, except for where results go.
class LoopRow {
 public:
  static Support supports(const LoopProblem& problem, const Settings& settings);

  // Adds what the loop reads to the kernel's parameters.
  LoopRow(LaunchWriter& writer, LoopProblem problem, const Settings& settings);
  LoopRow(LoopRow&&) noexcept;
  ~LoopRow();
  // Codes of the row's elements, in a tile of the next power of two: those past the end are
  // anything. `row`: its number, over all leading axes.
  Tile emit(Tile row);

 private:
  std::unique_ptr<const LoopProblem> problem_;
  std::unique_ptr<LoopEmitter> emitter_;
};

}  // namespace tenon::kernels
