// What makes the rows of a product, a norm before q, k and v: where rows are few every CTA of the
// product's kernel computes them for itself; where they are many the loop has a launch of its own.
#pragma once

#include "kernels/llvm/loop/emitter.h"

namespace tenon::kernels {

class RowPrologue {
 public:
  RowPrologue(const ir::Graph& graph, const ir::Node& loop, const Settings& settings);

  Support supports() const;
  // Inside of a product's kernel.
  LoopRow declare(LaunchWriter& writer, Lowered& lowered) const;
  // Into memory, for the Runs where `wanted` is 1 and not 0.
  void add_launches(const Dim& wanted, Lowered& lowered) const;

 private:
  const Settings& settings_;
  LoopProblem problem_;
  Lowered constants_;  // and checks; no launches
  Planned alone_;      // as a launch of its own
};

}  // namespace tenon::kernels
