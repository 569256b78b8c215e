// Who holds what: decided for all ranks at once, and the same on each of them.
//
// A value is whole on every rank, or cut along one dim. Sums over a cut dim are made whole at once,
// so that none flows on as partial sums.
//
//   x ── dot by columns ── pointwise, views, attention by heads ── dot by rows ── AllReduce ── y
//   x ── dot by columns ── AllGather ── y                          where nothing goes on with the
//   cut
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "distributed/sharding/cut.h"
#include "distributed/sharding/report.h"
#include "distributed/sharding/wishes.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::distributed {

struct DotCut {
  enum class By : uint8_t { kColumns, kRows };
  By by = By::kColumns;
  Shares shares;  // of N, or of K
};

// Where a slice of a packed value begins in what each rank has of it.
using SliceStarts = std::vector<int64_t>;

struct Decisions {
  std::map<ir::ValueId, Cut> cuts;                          // values that ranks have parts of
  std::map<std::pair<ir::NodeId, size_t>, Cut> parts_read;  // operands that come whole
  std::map<ir::NodeId, DotCut> dots;
  std::map<ir::NodeId, SliceStarts> slices;
  std::map<ir::NodeId, Wish> wishes;  // of the file: nothing else is done to these

  bool allow(ir::NodeId dot, DotCut::By by) const;
  void add(const Decisions& more);
};

// Something that every rank holds or computes whole.
struct Whole {
  std::string node, reason;
  int64_t bytes = 0;  // of weights that could have been cut
};

struct Plan {
  Decisions decisions;
  std::map<ir::NodeId, HeadShares> attentions;
  std::map<ir::ValueId, Cut> gathers;     // computed in parts, then put together for all readers
  std::map<ir::NodeId, Shares> tables;    // Gathers of a constant whose rows are dealt out
  std::map<std::string, Shares> symbols;  // head counts of caches that a rank binds its own of
  std::vector<Whole> wholes;
  std::vector<AnnotationAnswer> annotations;
  std::set<ir::NodeId> told;  // nodes that `wholes` speaks of
};

struct PlanOptions {
  int64_t ranks = 1;
  int64_t least_bytes = 0;  // smaller weights are not worth an AllGather
};

Plan make_plan(const ir::Graph& graph, const PlanOptions& options,
               const Annotations& annotations = {});

}  // namespace tenon::distributed
