#include "kernels/llvm/concat.h"

#include <array>

#include <fmt/format.h>

#include "kernels/llvm/loop/emitter.h"
#include "kernels/llvm/loop/movement.h"

namespace tenon::kernels {
namespace {

int64_t axis_of(const ir::Graph& graph, const ir::Node& node) {
  const auto rank = static_cast<int64_t>(graph.value(node.output(0)).shape->size());
  const int64_t axis = node.integer("axis", 0);
  return axis < 0 ? axis + rank : axis;
}

// An input is rows of neighbouring elements: everything from the axis on.
std::vector<LoopProblem> slices(const ir::Graph& graph, const ir::Node& node) {
  const auto axis = static_cast<size_t>(axis_of(graph, node));
  const auto row_size = [&](ir::ValueId id) {
    const Shape& shape = *graph.value(id).shape;
    return element_count(Shape(shape.begin() + static_cast<std::ptrdiff_t>(axis), shape.end()));
  };
  const Dim output_row = row_size(node.output(0));
  std::vector<LoopProblem> problems;
  Dim offset = 0;
  for (ir::ValueId input : node.inputs) {
    if (input == ir::kNoValue) continue;
    const Shape& shape = *graph.value(input).shape;
    const Dim rows =
        element_count(Shape(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis)));
    const Dim row = row_size(input);
    Movement copy("concat", graph, {rows, row});
    const ir::ValueId value = copy.read(input);
    copy.load(value, copy.contiguous({rows, row}));
    tiling::Access place;
    place.offset = offset;
    place.strides = {output_row, Dim(1)};
    copy.store(value, node.output(0), std::move(place));
    problems.push_back(copy.finish());
    offset = offset + row;
  }
  return problems;
}

Planned plan_concat(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const auto rank = static_cast<int64_t>(graph.value(node.output(0)).shape->size());
  const int64_t axis = axis_of(graph, node);
  if (axis < 0 || axis >= rank)
    return Planned::no(fmt::format("axis {} is out of range for rank {}", axis, rank));
  for (ir::ValueId input : node.inputs) {
    if (input == ir::kNoValue) continue;
    const ir::Value& value = graph.value(input);
    if (static_cast<int64_t>(value.shape->size()) != rank ||
        value.dtype != graph.value(node.output(0)).dtype) {
      return Planned::no(fmt::format("'{}' differs in rank or type from the result", value.name));
    }
  }
  std::vector<LoopProblem> problems = slices(graph, node);
  for (const LoopProblem& problem : problems) {
    if (Support answer = supports_problem(problem, settings); !answer) return answer;
  }
  return Plan::of({Skeleton::kLoop}, [problems = std::move(problems), &settings] {
    Lowered lowered;
    for (const LoopProblem& problem : problems) {
      lowered.launches.push_back(emit_loop(problem, settings));
    }
    return lowered;
  });
}

}  // namespace

std::span<const Candidate> concat_candidates() {
  static constexpr std::array<Candidate, 1> table = {{{"slices", plan_concat}}};
  return table;
}

}  // namespace tenon::kernels
