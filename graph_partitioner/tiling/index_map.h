// Symbolic tiling of a Loop body: which element of which input each point of the iteration domain
// reads, and where results go. It is both the legality check of loop fusion and what the kernels'
// lowering emits its addresses from.
//
// Coordinates are propagated backwards: the region of pointwise and reduction ops sees the domain's
// own coordinates (x_0 … x_{r-1}), right-aligned as ONNX broadcasts; from there they walk down
// through the movement ops to the body's inputs. What arrives has one closed form:
//
//   element(x) = offset + Σ_axis strides[axis] * x_axis
//                       + Σ_blocks  stride * floor((step * x_axis + offset) / divisor)
//                       + Σ_gathers stride * floor((step * indices(x) + offset) / divisor)
//
//   Transpose   permutes terms            Slice        adds to an offset, scales a step
//   Expand      drops or zeroes a term    BlockExpand  multiplies a divisor
//   Gather      replaces a source         Pad          subtracts from an offset, adds a guard
//
// All numbers are Dims. Where an axis may turn out to have size 1 at run time, its coefficients are
// wrapped in stride_unless_one(), so that broadcasting needs no branch.
#pragma once

#include <vector>

#include "base/shape.h"
#include "base/support.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::tiling {

// stride * floor((step * x_axis + offset) / divisor), divisor > 1.
struct BlockTerm {
  int axis = 0;
  Dim step = 1;
  Dim offset;
  int64_t divisor = 1;
  Dim stride;

  bool operator==(const BlockTerm&) const = default;
};

// stride * floor((step * index + offset) / divisor), where `index` is an element of the body input
// `indices`; a negative one counts from the end: index < 0 ? index + bound : index.
struct GatherTerm {
  ir::ValueId indices = ir::kNoValue;
  Dim indices_offset;                // element of `indices`: offset + strides·x + blocks
  std::vector<Dim> indices_strides;  // one per domain axis
  std::vector<BlockTerm> indices_blocks;
  Dim bound;  // every index must lie in [-bound, bound), or in [0, bound)
  bool from_end = true;
  Dim step = 1;
  Dim offset;
  int64_t divisor = 1;
  Dim stride;
};

// 0 <= step * x_axis + offset < size.
struct Bound {
  int axis = 0;
  Dim step = 1;
  Dim offset;
  Dim size;
};

// Where a bound does not hold nothing is read and the element is `fill`.
struct Guard {
  std::vector<Bound> bounds;
  ir::ValueId fill = ir::kNoValue;  // a body input or constant of one element
};

// One way in which the region reads a body input or constant. An input that is read twice in
// different ways (rotate-half: two slices of it) has two accesses.
struct Access {
  ir::ValueId value = ir::kNoValue;  // what the region's ops name: the end of the movement chain
  ir::ValueId input = ir::kNoValue;  // the body input or constant at the chain's start
  Dim offset;                        // in elements
  std::vector<Dim> strides;  // one per domain axis; 0 where the element does not depend on it
  std::vector<BlockTerm> blocks;
  std::vector<GatherTerm> gathers;
  std::vector<Guard> guards;  // outermost first: the first that fails decides
};

// A result: element Σ strides[axis] * x_axis of the contiguous output tensor. A reduced value has
// stride 0 along the reduced axes and is complete after them.
struct Store {
  ir::ValueId value = ir::kNoValue;
  std::vector<Dim> strides;
};

// Sizes that only a Run can compare: a tensor of `size` is read where the loop runs over `over`, so
// `size` must be 1 or `over`; anything else is the caller's error.
struct Fit {
  Dim size, over;
};

struct LoopTiling {
  Support support;  // why the body is no legal loop; the rest is empty then
  Shape domain;
  std::vector<int> reduced_axes;     // sorted; empty for a pointwise loop
  std::vector<Access> accesses;      // in order of first use
  std::vector<Store> stores;         // one per body output, in order
  std::vector<ir::NodeId> region;    // pointwise and reduction nodes, in order: what is computed
  std::vector<ir::NodeId> movement;  // the rest: dissolved into accesses
  std::vector<Fit> fits;
};

// Rules that `support` speaks of, beyond the closed forms above:
// - movement ops stand only between an input and the region; a body of movement only is legal;
// - every region value has, per domain axis, the domain's size or 1 (or a size that may be either,
//   known at run time: broadcast(a, b));
// - all reductions reduce the same axes, with keepdims=1, and their operand has the domain's size
//   there;
// - an output has the domain's size along every axis, or along all but the reduced axes and 1
// there:
//   no element is written by two points of the domain.
LoopTiling analyze(const ir::Graph& body);

// Position of a value's axis among the domain's axes (right-aligned).
inline int domain_axis(const LoopTiling& tiling, const Shape& shape, int axis) {
  return axis + static_cast<int>(tiling.domain.size()) - static_cast<int>(shape.size());
}

}  // namespace tenon::tiling
