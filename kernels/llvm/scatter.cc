#include "kernels/llvm/scatter.h"

#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/llvm/index_tuples.h"
#include "kernels/llvm/loop/emitter.h"
#include "kernels/llvm/loop/movement.h"

namespace tenon::kernels {
namespace {

struct Reduction {
  std::string_view name, op;  // an empty op overwrites
};

constexpr std::array<Reduction, 5> kReductions = {
    {{"none", ""}, {"add", "Add"}, {"mul", "Mul"}, {"max", "Max"}, {"min", "Min"}}};

std::string_view reduction_op(const ir::Node& node) {
  const std::string wanted = node.text("reduction", "none");
  for (const Reduction& reduction : kReductions) {
    if (reduction.name == wanted) return reduction.op;
  }
  throw UserError(fmt::format("reduction '{}'", wanted));
}

// output[place] = updates[x], or what the reduction makes of both.
LoopProblem write_updates(Movement& scatter, const ir::Node& node, ir::ValueId updates,
                          const tiling::Access& place, const Shape& update_shape) {
  scatter.load(updates, scatter.contiguous(update_shape));
  ir::ValueId result = updates;
  if (const std::string_view op = reduction_op(node); !op.empty()) {
    const ir::ValueId before = scatter.read(node.output(0));
    scatter.load(before, place);
    result = scatter.apply(std::string(op), {before, updates});
  }
  scatter.store(result, node.output(0), place);
  return scatter.finish();
}

LoopProblem scatter_elements_problem(const ir::Graph& graph, const ir::Node& node) {
  const Shape& data_shape = *graph.value(node.input(0)).shape;
  const Shape& shape = *graph.value(node.input(1)).shape;
  const size_t axis = checked_axis(node.integer("axis", 0), data_shape.size());
  if (shape.size() != data_shape.size()) throw UserError("indices differ in rank from the data");
  require_indices(graph, node.input(1));
  Movement scatter("scatter_elements", graph, shape);
  const ir::ValueId indices = scatter.read(node.input(1)), updates = scatter.read(node.input(2));
  const Shape strides = contiguous_strides(data_shape);
  tiling::Access place;
  place.strides = strides;
  place.strides[axis] = 0;
  place.gathers.push_back(
      scatter.gather_term(indices, 0, contiguous_strides(shape), data_shape[axis], strides[axis]));
  scatter.check({.value = node.input(1), .bound = data_shape[axis]});
  scatter.keep_order_along(static_cast<int>(axis));
  return write_updates(scatter, node, updates, place, shape);
}

// All tuples stand along one axis, which keeps its order; what they do not index follows.
LoopProblem scatter_nd_problem(const ir::Graph& graph, const ir::Node& node) {
  IndexTuples tuples = index_tuples(graph, node.input(0), node.input(1), 0);
  const Shape& index_shape = *graph.value(node.input(1)).shape;
  const auto tuple_axes = static_cast<std::ptrdiff_t>(index_shape.size() - 1);
  const auto collapse = [&](Shape& dims, Dim first) {
    dims.erase(dims.begin(), dims.begin() + tuple_axes);
    dims.insert(dims.begin(), std::move(first));
  };
  collapse(tuples.domain, element_count(Shape(index_shape.begin(), index_shape.end() - 1)));
  collapse(tuples.index_strides, index_shape.back());
  collapse(tuples.data_strides, 0);
  Movement scatter("scatter_nd", graph, tuples.domain);
  const ir::ValueId indices = scatter.read(node.input(1)), updates = scatter.read(node.input(2));
  for (const IndexCheck& check : tuples.checks) scatter.check(check);
  scatter.keep_order_along(0);
  return write_updates(scatter, node, updates, tuples.place_in_data(scatter, indices),
                       tuples.domain);
}

using MakeProblem = LoopProblem (*)(const ir::Graph&, const ir::Node&);

template <MakeProblem make>
Planned plan_scatter(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  if (is_packed(graph.value(node.output(0)).dtype)) {
    return Planned::no(fmt::format("scatter into sub-byte type {} is not supported",
                                   name(graph.value(node.output(0)).dtype)));
  }
  try {
    LoopProblem problem = make(graph, node);
    if (Support answer = supports_problem(problem, settings); !answer) return answer;
    const LoopProblem copy = copy_problem(graph, node.input(0), node.output(0));
    const ElidableCopy copied{node.input(0), node.output(0)};
    return Plan::of({Skeleton::kLoop}, [copy, copied, problem = std::move(problem), &settings] {
      Lowered lowered;
      lowered.launches.push_back(emit_loop(copy, settings));
      lowered.launches.back().elidable_copy = copied;
      lowered.launches.push_back(emit_loop(problem, settings));
      return lowered;
    });
  } catch (const UserError& error) {
    return Planned::no(error.what());
  }
}

}  // namespace

std::span<const Candidate> scatter_elements_candidates() {
  static constexpr std::array<Candidate, 1> table = {
      {{"copy_then_write", plan_scatter<scatter_elements_problem>}}};
  return table;
}

std::span<const Candidate> scatter_nd_candidates() {
  static constexpr std::array<Candidate, 1> table = {
      {{"copy_then_write", plan_scatter<scatter_nd_problem>}}};
  return table;
}

}  // namespace tenon::kernels
