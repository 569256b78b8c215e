#include "kernels/collectives.h"

#include <array>

#include "kernels/planning/collectives.h"

namespace tenon::kernels {
namespace {

Lowered lower(const ir::Graph& graph, const ir::Node& node, const Collectives& collectives) {
  const ir::Value& x = graph.value(node.input(0));
  Dim row = 1;
  for (size_t axis = 1; axis < x.shape->size(); ++axis) row = row * (*x.shape)[axis];
  Launch launch = Launch::library(
      collectives.make_call(ir::Collective::from(node), x.dtype),
      {BufferArgument::value(node.input(0)), BufferArgument::value(node.output(0))}, {false, true});
  launch.indices = {element_count(*x.shape), row};
  Lowered lowered;
  lowered.launches.push_back(std::move(launch));
  return lowered;
}

Planned plan_collective(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  if (!settings.collectives) {
    return Planned::no(
        "it is something that ranks do together, and this session is alone: launch it with "
        "torchrun, mpirun or srun, or set tensor_parallel_size and tensor_parallel_rank");
  }
  const auto collective = ir::Collective::from(node);
  if (Support answer = settings.collectives->supports(collective, graph.value(node.input(0)).dtype);
      !answer) {
    return answer;
  }
  return Plan::of({Skeleton::kLibrary}, [&graph, &node, ranks = settings.collectives] {
    return lower(graph, node, *ranks);
  });
}

}  // namespace

std::span<const Candidate> collective_candidates() {
  static constexpr std::array<Candidate, 1> table = {{{"communicator", plan_collective}}};
  return table;
}

}  // namespace tenon::kernels
