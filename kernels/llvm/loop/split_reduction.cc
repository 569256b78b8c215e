#include "kernels/llvm/loop/split_reduction.h"

#include <algorithm>
#include <set>

#include "kernels/llvm/loop/reducers.h"
#include "kernels/llvm/loop/schedule.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kPartElements = 16384;
constexpr int64_t kWorthSplitting = 8 * kPartElements;
constexpr int64_t kFewResults = 4;  // more rows than that keep the threads busy by themselves

struct Cone {
  std::set<ir::ValueId> values;
  std::set<ir::NodeId> nodes;
};

class Splitter {
 public:
  explicit Splitter(const LoopProblem& problem) : problem_(problem), body_(*problem.body) {
    for (ir::NodeId id : problem_.region) {
      (is_reduction(body_.node(id)) ? reductions_ : others_).push_back(id);
    }
  }

  bool is_worth_it() const {
    if (problem_.reduced_axes.size() != 1 || !problem_.positions.empty()) return false;
    const Dim& size = problem_.domain[axis()];
    if (size.is_constant() && size.value() < kWorthSplitting) return false;
    Dim results = 1;
    for (size_t i = 0; i < problem_.domain.size(); ++i) {
      if (static_cast<int>(i) != axis()) results = results * problem_.domain[i];
    }
    return results.is_constant() && results.value() <= kFewResults && stores_are_reduced() &&
           walks_are_plain() && reductions_are_independent();
  }

  std::vector<LoopProblem> run(std::vector<Scratch>& scratch) {
    for (ir::NodeId id : reductions_) {
      const int bytes = bit_width(partial_type(id)) / 8;
      partials_.push_back(BufferArgument::scratch(static_cast<int32_t>(scratch.size())));
      scratch.push_back(result_count() * slots() * Dim(bytes));
    }
    return {parts(), rest(), total()};
  }

 private:
  int axis() const { return problem_.reduced_axes.front(); }
  const Dim& size() const { return problem_.domain[axis()]; }
  Dim whole_parts() const { return floor_div(size(), Dim(kPartElements)); }
  Dim slots() const { return whole_parts() + Dim(1); }  // partial results per result
  DType partial_type(ir::NodeId id) const {
    return compute_type(body_.value(body_.node(id).input(0)).dtype);
  }
  Dim result_count() const {
    Dim count = 1;
    for (size_t i = 0; i < problem_.domain.size(); ++i) {
      if (static_cast<int>(i) != axis()) count = count * problem_.domain[i];
    }
    return count;
  }

  bool stores_are_reduced() const {
    return std::all_of(problem_.stores.begin(), problem_.stores.end(), [&](const LoopStore& store) {
      return (axes_of(store.place) >> axis() & 1) == 0;
    });
  }

  // Along the reduced axis elements lie a fixed distance apart and every one counts.
  bool walks_are_plain() const {
    const auto blocked = [&](const std::vector<tiling::BlockTerm>& blocks) {
      return std::any_of(blocks.begin(), blocks.end(),
                         [&](const tiling::BlockTerm& block) { return block.axis == axis(); });
    };
    return std::all_of(
        problem_.loads.begin(), problem_.loads.end(), [&](const tiling::Access& load) {
          return load.guards.empty() && !blocked(load.blocks) &&
                 std::none_of(
                     load.gathers.begin(), load.gathers.end(),
                     [&](const tiling::GatherTerm& term) { return blocked(term.indices_blocks); });
        });
  }

  bool reductions_are_independent() const {
    return std::none_of(reductions_.begin(), reductions_.end(), [&](ir::NodeId id) {
      const Cone operands = cone({body_.node(id).input(0)});
      return needs_position(body_.node(id)) ||
             std::any_of(reductions_.begin(), reductions_.end(),
                         [&](ir::NodeId other) { return operands.nodes.contains(other); });
    });
  }

  // What `targets` are computed from; the operands of reductions are not followed.
  Cone cone(std::vector<ir::ValueId> targets) const {
    Cone found;
    while (!targets.empty()) {
      const ir::ValueId id = targets.back();
      targets.pop_back();
      if (id == ir::kNoValue || !found.values.insert(id).second) continue;
      if (problem_.find_load(id) != nullptr) continue;
      for (ir::NodeId node : problem_.region) {
        const auto& outputs = body_.node(node).outputs;
        if (std::find(outputs.begin(), outputs.end(), id) == outputs.end()) continue;
        found.nodes.insert(node);
        if (is_reduction(body_.node(node))) continue;
        const auto& inputs = body_.node(node).inputs;
        targets.insert(targets.end(), inputs.begin(), inputs.end());
      }
    }
    return found;
  }

  // The problem with those of its loads and buffers that the values need.
  LoopProblem part_of(const Cone& needed, std::string name) const {
    LoopProblem part;
    part.name = std::move(name);
    part.body = problem_.body;
    part.domain = problem_.domain;
    part.reduced_axes = problem_.reduced_axes;
    const auto keep_buffer = [&](ir::ValueId id) {
      if (const auto found = problem_.buffers.find(id); found != problem_.buffers.end()) {
        part.buffers.insert(*found);
      }
    };
    for (const tiling::Access& load : problem_.loads) {
      if (!needed.values.contains(load.value)) continue;
      part.loads.push_back(load);
      keep_buffer(load.input);
      for (const tiling::GatherTerm& term : load.gathers) keep_buffer(term.indices);
    }
    return part;
  }

  // A contiguous [results…, slots] buffer, seen from the problem's axes.
  tiling::Access partial_place() const {
    tiling::Access place;
    place.strides.assign(problem_.domain.size(), Dim(0));
    place.strides[axis()] = 1;
    Dim stride = slots();
    for (int other = static_cast<int>(problem_.domain.size()) - 1; other >= 0; --other) {
      if (other == axis()) continue;
      place.strides[other] = stride;
      stride = stride * problem_.domain[other];
    }
    return place;
  }

  // Everything up to the reductions; means are still sums, unrounded.
  LoopProblem partial_problem(std::string name) const {
    std::vector<ir::ValueId> operands;
    for (ir::NodeId id : reductions_) operands.push_back(body_.node(id).input(0));
    const Cone needed = cone(operands);
    LoopProblem part = part_of(needed, std::move(name));
    part.checks = problem_.checks;
    auto body = std::make_shared<ir::Graph>(body_);
    for (ir::NodeId id : others_) {
      if (needed.nodes.contains(id)) part.region.push_back(id);
    }
    for (size_t i = 0; i < reductions_.size(); ++i) {
      ir::Node& node = body->node(reductions_[i]);
      if (node.is("ReduceMean")) node.op = "ReduceSum";
      body->value(node.output(0)).dtype = partial_type(reductions_[i]);
      part.region.push_back(reductions_[i]);
      part.stores.push_back({node.output(0), partials_[i], partial_place()});
    }
    part.body = std::move(body);
    return part;
  }

  // The reduced axis becomes two: which part (kept), and where in it.
  LoopProblem parts() const {
    LoopProblem part = partial_problem("reduce_parts");
    const int at = axis();
    part.domain[at] = kPartElements;
    part.domain.insert(part.domain.begin() + at, whole_parts());
    part.reduced_axes = {at + 1};
    const auto split = [&](std::vector<Dim>& strides, std::vector<tiling::BlockTerm>& blocks) {
      strides.insert(strides.begin() + at, strides[at] * Dim(kPartElements));
      for (tiling::BlockTerm& block : blocks) block.axis += block.axis > at;
    };
    for (tiling::Access& load : part.loads) {
      split(load.strides, load.blocks);
      for (tiling::GatherTerm& term : load.gathers) {
        split(term.indices_strides, term.indices_blocks);
      }
    }
    for (LoopStore& store : part.stores) {
      store.place.strides.insert(store.place.strides.begin() + at + 1, Dim(0));
    }
    return part;
  }

  LoopProblem rest() const {
    LoopProblem part = partial_problem("reduce_rest");
    const Dim done = whole_parts() * Dim(kPartElements);
    part.domain[axis()] = size() - done;
    const auto skip = [&](Dim& offset, const std::vector<Dim>& strides) {
      offset = offset + strides[axis()] * done;
    };
    for (tiling::Access& load : part.loads) {
      skip(load.offset, load.strides);
      for (tiling::GatherTerm& term : load.gathers) skip(term.indices_offset, term.indices_strides);
    }
    for (LoopStore& store : part.stores) {
      store.place.offset = whole_parts();
      store.place.strides[axis()] = 0;
    }
    return part;
  }

  LoopProblem total() const {
    std::vector<ir::ValueId> results;
    for (const LoopStore& store : problem_.stores) results.push_back(store.value);
    const Cone needed = cone(results);
    LoopProblem part = part_of(needed, "reduce_total");
    part.domain[axis()] = slots();
    part.stores = problem_.stores;
    auto body = std::make_shared<ir::Graph>(body_);
    for (size_t i = 0; i < reductions_.size(); ++i) add_total(i, *body, part);
    for (ir::NodeId id : others_) {
      if (needed.nodes.contains(id)) part.region.push_back(id);
    }
    part.body = std::move(body);
    return part;
  }

  ir::ValueId add_value(ir::Graph& body, DType dtype) const {
    ir::Value value;
    value.name = "partial";
    value.dtype = dtype;
    return body.add_value(std::move(value));
  }

  ir::NodeId add_node(ir::Graph& body, std::string op, std::vector<ir::ValueId> inputs,
                      ir::ValueId output) const {
    ir::Node node;
    node.op = std::move(op);
    node.inputs = std::move(inputs);
    node.outputs = {output};
    if (node.is("tenon::DimValue")) node.attributes["dim"] = max(size(), 1).text();
    return body.add_node(std::move(node));
  }

  // The reduction reads partial results; a mean divides their sum by the whole count.
  void add_total(size_t index, ir::Graph& body, LoopProblem& part) const {
    const ir::NodeId id = reductions_[index];
    const DType type = partial_type(id);
    ir::Value input;
    input.name = "partials";
    input.dtype = type;
    const ir::ValueId partial = body.add_input(std::move(input));
    tiling::Access place = partial_place();
    place.value = place.input = partial;
    part.loads.push_back(std::move(place));
    part.buffers[partial] = partials_[index];
    body.node(id).inputs = {partial};
    part.region.push_back(id);
    if (!body.node(id).is("ReduceMean")) return;

    const ir::ValueId mean = body.node(id).output(0);
    const ir::ValueId sum = add_value(body, type), count = add_value(body, type);
    body.node(id).op = "ReduceSum";
    body.node(id).outputs = {sum};
    body.value(sum).producer = id;
    part.region.push_back(add_node(body, "tenon::DimValue", {}, count));
    part.region.push_back(add_node(body, "Div", {sum, count}, mean));
  }

  const LoopProblem& problem_;
  const ir::Graph& body_;
  std::vector<ir::NodeId> reductions_, others_;
  std::vector<BufferArgument> partials_;
};

}  // namespace

std::vector<LoopProblem> split_reduction(LoopProblem problem, std::vector<Scratch>& scratch) {
  Splitter splitter(problem);
  if (splitter.is_worth_it()) return splitter.run(scratch);
  return {std::move(problem)};
}

}  // namespace tenon::kernels
