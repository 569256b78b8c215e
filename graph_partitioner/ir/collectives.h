// What ranks do together, as typed views of nodes. Every rank runs the same ones in the same order:
// they have an effect beside their result, so no pass removes one, computes one ahead, or moves one
// across another (graph.h keeps the order that it was given).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::ir {

inline constexpr std::string_view kAllReduce = "tenon::AllReduce";
inline constexpr std::string_view kAllGather = "tenon::AllGather";
inline constexpr std::string_view kReduceScatter = "tenon::ReduceScatter";
inline constexpr std::string_view kAllToAll = "tenon::AllToAll";
inline constexpr std::string_view kBroadcast = "tenon::Broadcast";
inline constexpr std::string_view kPermute = "tenon::Permute";

bool is_collective(const Node& node);
// Of ONNX Runtime, before passes have made one of the above of it.
bool is_imported_collective(const Node& node);

// One input, one output of the same type. Parts are along the first dim: other axes are brought
// there and back by transposes, which fuse with what stands around.
//
//   AllReduce      y = reduction over the ranks of x
//   AllGather      y = what the ranks bring, behind each other
//   ReduceScatter  y = this rank's part of the reduction over the ranks of x
//   AllToAll       part r of y is what rank r had as this rank's part of x
//   Broadcast      y = x of rank `root`
//   Permute        y = x of the rank that sends to this one; zeros where none does
struct Collective {
  std::string op{kAllReduce};
  std::string reduction = "sum";  // sum, prod, min, max, average
  // Rows by rank of the group, where ranks have parts of different sizes; empty: equal ones.
  std::vector<int64_t> parts = {};
  int64_t part = 0;  // which of them is this rank's
  // Ranks of a group in order, -1 between groups, every rank once; empty: one group of all.
  std::vector<int64_t> groups = {};
  int64_t ranks = 0;                // of a group; 0: all that there are (AllReduce, Broadcast)
  int64_t root = 0;                 // in the group
  std::vector<int64_t> pairs = {};  // source, target, source, target, … in the group
  std::string note = {};            // what a rule made of it, for reports; no rank acts on it

  static Collective from(const Node& node);
  void write_to(Node& node) const;  // op and attributes; inputs and outputs are the caller's
};

// Whether the view's numbers fit together.
Support check(const Collective& collective);

}  // namespace tenon::ir
