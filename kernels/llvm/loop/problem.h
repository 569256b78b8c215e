// What a loop kernel computes: an iteration domain, the elements that each of its points reads and
// writes, and the ops between them. Loops come here from a body's tiling; data movement with an
// address rule of its own (Concat, GatherND, …) writes its problem directly.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/tiling/index_map.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

struct LoopStore {
  ir::ValueId value = ir::kNoValue;  // of the body
  BufferArgument buffer;
  tiling::Access place;  // element written by each point; `value`, `input` and guards mean nothing
};

struct LoopProblem {
  std::string name;  // of the kernel
  std::shared_ptr<const ir::Graph> body;
  Shape domain;
  std::vector<int> reduced_axes;  // sorted
  std::vector<tiling::Access> loads;
  std::vector<LoopStore> stores;
  std::vector<ir::NodeId> region;                 // pointwise and reduction nodes, in order
  std::map<ir::ValueId, BufferArgument> buffers;  // of the body values that are read from memory
  // Points along this axis may write the same element: they run one after the other, in one task.
  int ordered_axis = -1;
  std::map<ir::NodeId, int> positions;  // domain axis of each tenon::Position in the region
  std::vector<IndexCheck> checks;
  // Constants to gather by: inside of their bounds before the launch, and none from the end.
  std::set<ir::ValueId> known_indices;

  bool is_reduced(int axis) const;
  const tiling::Access* find_load(ir::ValueId value) const;
  // The one number that a body value is, where it is a known scalar: baked into the code.
  bool is_baked(ir::ValueId value) const;
};

// What a tenon::Loop computes. Throws UserError with the reason where its body is no legal loop.
LoopProblem describe_loop(const ir::Graph& graph, const ir::Node& node, Lowered& lowered);

// Fewer axes with the same meaning: axes of size 1 vanish, neighbours that every access walks
// through contiguously become one.
LoopProblem merge_axes(LoopProblem problem);

}  // namespace tenon::kernels
