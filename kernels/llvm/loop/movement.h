// Loop problems written by hand: data movement whose addresses no chain of movement ops expresses.
#pragma once

#include <string>
#include <vector>

#include "kernels/llvm/loop/problem.h"

namespace tenon::kernels {

class Movement {
 public:
  Movement(std::string name, const ir::Graph& graph, Shape domain);

  // Makes a value of the graph readable; the id is the body's.
  ir::ValueId read(ir::ValueId value);
  // Result of a pointwise op on body values.
  ir::ValueId apply(std::string op, std::vector<ir::ValueId> operands);

  // `value` of the body is the element that `place` names. One place per value.
  void load(ir::ValueId value, tiling::Access place);
  void store(ir::ValueId value, ir::ValueId output, tiling::Access place);
  // Steps by `stride` elements per index found in the body value `indices`.
  tiling::GatherTerm gather_term(ir::ValueId indices, Dim offset, std::vector<Dim> strides,
                                 Dim bound, Dim stride) const;
  void check(IndexCheck check) { problem_.checks.push_back(std::move(check)); }
  void keep_order_along(int axis) { problem_.ordered_axis = axis; }

  LoopProblem finish();

  // A contiguous tensor of shape `shape` read along the domain's axes, right-aligned.
  tiling::Access contiguous(const Shape& shape) const;

 private:
  const ir::Graph& graph_;
  ir::Graph body_;
  LoopProblem problem_;
};

// The whole of `from` to `to`, which has as many elements of the same type.
LoopProblem copy_problem(const ir::Graph& graph, ir::ValueId from, ir::ValueId to);

}  // namespace tenon::kernels
