// One movement op as data, and what it means for an operand that broadcasts into the moved value.
#pragma once

#include <optional>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon {

struct Move {
  enum class Kind : uint8_t { kNone, kTranspose, kSlice, kExpand, kBlockExpand, kGather, kReshape };
  Kind kind = Kind::kNone;
  Shape result;
  std::vector<int64_t> perm;           // kTranspose
  std::vector<Dim> starts;             // kSlice, one per axis
  std::vector<int64_t> steps;          // kSlice
  int64_t axis = 0, block = 1;         // kBlockExpand, kGather
  ir::ValueId indices = ir::kNoValue;  // kGather
  Shape indices_shape;                 // kGather

  // nullopt for what cannot sink (Pad: its fill would be computed with) or is not known well
  // enough.
  static std::optional<Move> of(const ir::Graph& graph, const ir::Node& node);

  // This move of a value of shape `whole` as seen by an operand that broadcasts into it: the moved
  // operand broadcasts into the moved value. nullopt where that cannot be said.
  std::optional<Move> adapt(const Shape& whole, const Shape& operand) const;

  bool is_none() const { return kind == Kind::kNone; }
  bool repeats_elements() const {
    return kind == Kind::kExpand || kind == Kind::kBlockExpand || kind == Kind::kGather;
  }
  ir::Node node(ir::ValueId data) const;  // its outputs are the caller's

  bool operator==(const Move&) const = default;
};

}  // namespace tenon
