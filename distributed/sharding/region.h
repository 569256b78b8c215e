// Tries to cut a part of a graph: from what is asked of one value back to products that can be cut
// by columns, and on to those that sum over the cut dim. Nothing is changed; what comes out is a
// set of decisions, or a reason why not.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "distributed/sharding/flow.h"
#include "distributed/sharding/plan.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::distributed {

// Readers of each value; a graph does not change while it is planned.
class Readers {
 public:
  explicit Readers(const ir::Graph& graph);
  const std::vector<ir::NodeId>& of(ir::ValueId id) const {
    return nodes_[static_cast<size_t>(id)];
  }
  bool is_output(ir::ValueId id) const { return outputs_.contains(id); }

 private:
  std::vector<std::vector<ir::NodeId>> nodes_;
  std::set<ir::ValueId> outputs_;
};

class Region {
 public:
  // `sink` asks for cut operands.
  Region(const ir::Graph& graph, const Readers& readers, const Decisions& before, ir::NodeId sink)
      : graph_(graph), readers_(readers), before_(before), sink_(sink) {}

  struct Wanted {
    ir::ValueId value = ir::kNoValue;
    size_t operand = 0;  // of the sink
    Cut cut;
  };
  // Cuts what makes the wanted values as far back as it goes; what cannot be cut is computed whole,
  // and its readers take their part of it. Where the sink's own result is `cut`, everything behind
  // it must go on with that up to a product that sums over the dim. False: `reason` says why not.
  bool find(const std::vector<Wanted>& wanted, ir::ValueId result = ir::kNoValue,
            const Cut& cut = {});

  const Decisions& decisions() const { return found_; }
  size_t dots_by_columns() const;
  const std::string& reason() const { return reason_; }

 private:
  struct Packed {
    size_t axis = 0;
    std::map<ir::NodeId, Cut> slices;
  };

  bool try_wanted(const std::vector<Wanted>& wanted, ir::ValueId result, const Cut& cut);
  bool go_on(ir::ValueId value, const Cut& cut);
  bool go_on_in(ir::NodeId reader, ir::ValueId value, const Cut& cut);
  bool want(ir::ValueId value, const Cut& cut, ir::NodeId reader, size_t operand);
  bool read_part(ir::ValueId value, const Cut& cut, ir::NodeId reader, size_t operand);
  bool want_dot(ir::NodeId id, const Cut& cut);
  bool can_be_cut(ir::ValueId value, const Cut& cut) const;
  bool reader_goes_on(ir::NodeId reader, ir::ValueId value, const Cut& cut) const;
  bool producer_goes_on(ir::ValueId value, const Cut& cut) const;
  bool join_slices();
  bool join(ir::ValueId value, const Packed& packed);
  bool close();
  bool closes(ir::NodeId reader, ir::ValueId value, const Cut& cut);
  bool take_rows(ir::NodeId reader, ir::ValueId value, const Cut& cut);
  bool refuse(std::string why);

  const ir::Graph& graph_;
  const Readers& readers_;
  const Decisions& before_;
  ir::NodeId sink_;
  Decisions found_;
  std::map<ir::ValueId, Packed> packed_;
  std::set<ir::ValueId> whole_;  // found to be needed whole by somebody outside
  std::string reason_;
};

}  // namespace tenon::distributed
