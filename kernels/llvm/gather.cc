#include "kernels/llvm/gather.h"

#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/llvm/index_tuples.h"
#include "kernels/llvm/loop/emitter.h"
#include "kernels/llvm/loop/movement.h"

namespace tenon::kernels {
namespace {

// y[x] = data[x with indices[x] along the axis]
LoopProblem gather_elements_problem(const ir::Graph& graph, const ir::Node& node) {
  const Shape& data_shape = *graph.value(node.input(0)).shape;
  const Shape& shape = *graph.value(node.input(1)).shape;
  const size_t axis = checked_axis(node.integer("axis", 0), data_shape.size());
  if (shape.size() != data_shape.size()) throw UserError("indices differ in rank from the data");
  require_indices(graph, node.input(1));
  Movement gather("gather_elements", graph, shape);
  const ir::ValueId data = gather.read(node.input(0)), indices = gather.read(node.input(1));
  const Shape strides = contiguous_strides(data_shape);
  tiling::Access place;
  place.strides = strides;
  place.strides[axis] = 0;
  place.gathers.push_back(
      gather.gather_term(indices, 0, contiguous_strides(shape), data_shape[axis], strides[axis]));
  gather.load(data, std::move(place));
  gather.store(data, node.output(0), gather.contiguous(shape));
  gather.check({.value = node.input(1), .bound = data_shape[axis]});
  return gather.finish();
}

// y[batch…, tuple…, rest…] = data[batch…, indices[batch…, tuple…]…, rest…]
LoopProblem gather_nd_problem(const ir::Graph& graph, const ir::Node& node) {
  const auto batch = static_cast<size_t>(node.integer("batch_dims", 0));
  const IndexTuples tuples = index_tuples(graph, node.input(0), node.input(1), batch);
  Movement gather("gather_nd", graph, tuples.domain);
  const ir::ValueId data = gather.read(node.input(0)), indices = gather.read(node.input(1));
  gather.load(data, tuples.place_in_data(gather, indices));
  gather.store(data, node.output(0), gather.contiguous(tuples.domain));
  for (const IndexCheck& check : tuples.checks) gather.check(check);
  return gather.finish();
}

using MakeProblem = LoopProblem (*)(const ir::Graph&, const ir::Node&);

template <MakeProblem make>
Planned plan_gather(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  try {
    LoopProblem problem = make(graph, node);
    if (Support answer = supports_problem(problem, settings); !answer) return answer;
    return Plan::of({Skeleton::kLoop}, [problem = std::move(problem), &settings] {
      Lowered lowered;
      lowered.launches.push_back(emit_loop(problem, settings));
      return lowered;
    });
  } catch (const UserError& error) {
    return Planned::no(error.what());
  }
}

}  // namespace

std::span<const Candidate> gather_elements_candidates() {
  static constexpr std::array<Candidate, 1> table = {
      {{"one_kernel", plan_gather<gather_elements_problem>}}};
  return table;
}

std::span<const Candidate> gather_nd_candidates() {
  static constexpr std::array<Candidate, 1> table = {
      {{"one_kernel", plan_gather<gather_nd_problem>}}};
  return table;
}

}  // namespace tenon::kernels
