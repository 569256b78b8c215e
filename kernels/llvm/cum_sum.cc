#include "kernels/llvm/cum_sum.h"

#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/llvm/index_tuples.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

constexpr int kHostLanes = 16, kGpuLanes = 32;

// x as [outer, length, inner]: sums run along the middle.
struct Problem {
  Dim outer, length, inner;
  bool exclusive = false, reverse = false;
  int lanes = kHostLanes;

  bool in_lanes() const { return !inner.is(1); }
  Dim groups() const { return in_lanes() ? ceil_div(inner, Dim(lanes)) : Dim(1); }

  static Problem from(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
    const Shape& shape = *graph.value(node.input(0)).shape;
    const ir::Value& given = graph.value(node.input(1));
    if (!given.is_constant() || given.constant->elements() != 1) {
      throw UserError("the axis is not a constant");
    }
    const size_t axis =
        checked_axis(load_integer(given.dtype, given.constant->data, 0), shape.size());
    const auto split = shape.begin() + static_cast<std::ptrdiff_t>(axis);
    return {element_count(Shape(shape.begin(), split)),
            *split,
            element_count(Shape(split + 1, shape.end())),
            node.integer("exclusive", 0) != 0,
            node.integer("reverse", 0) != 0,
            settings.gpu ? kGpuLanes : kHostLanes};
  }
};

Lowered lower_cum_sum(const ir::Graph& graph, const ir::Node& node, const Problem& problem) {
  const DType type = graph.value(node.input(0)).dtype;
  LaunchWriter writer("cum_sum");
  codegen::Builder& b = writer.builder;
  const Tile from = writer.buffer("x", type, BufferArgument::value(node.input(0)));
  const Tile to = writer.buffer("y", type, BufferArgument::value(node.output(0)));
  for (const Dim& dim : {problem.length, problem.inner, problem.groups()}) writer.declare(dim);

  const Tile length = writer.index(problem.length), inner = writer.index(problem.inner);
  const Tile groups = writer.index(problem.groups());
  const Tile outer = b.div(b.task(), groups);
  const Tile column = b.mul({b.rem(b.task(), groups), b.index(problem.lanes)});
  const std::vector<int> shape =
      problem.in_lanes() ? std::vector<int>{problem.lanes} : std::vector<int>{};
  const auto place = [&](Tile buffer, Tile offset) {
    codegen::Access access;
    access.buffer = buffer;
    access.offset = offset;
    if (problem.in_lanes()) {
      access.strides = {b.index(1)};
      access.extents = {b.sub(inner, column)};
    }
    return access;
  };
  const Tile zero = b.constant(compute_type(type), 0, shape);
  b.loop({b.index(0), length, b.index(1)}, {zero}, [&](Tile step, std::span<const Tile> carried) {
    const Tile at = problem.reverse ? b.sub(b.sub(length, b.index(1)), step) : step;
    const Tile row = b.add(b.mul(outer, length), at);
    const Tile offset = b.add(b.mul(row, inner), column);
    const Tile element = dequantize_tile(b, b.load(place(from, offset), shape), type);
    const Tile sum = b.add(carried[0], element);
    b.store({place(to, offset), quantize_tile(b, problem.exclusive ? carried[0] : sum, type)});
    return std::vector<Tile>{sum};
  });
  Lowered lowered;
  lowered.launches.push_back(
      writer.finish(problem.outer * problem.groups(), problem.length * Dim(2) + Dim(10)));
  lowered.launches.back().threads = kGpuLanes;
  return lowered;
}

Planned plan_cum_sum(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const DType type = graph.value(node.input(0)).dtype;
  if (bit_width(type) < 16)
    return Planned::no(fmt::format("CumSum of {} is not supported", name(type)));
  try {
    const Problem problem = Problem::from(graph, node, settings);
    return Plan::of({Skeleton::kLoop},
                    [&graph, &node, problem] { return lower_cum_sum(graph, node, problem); });
  } catch (const UserError& error) {
    return Planned::no(error.what());
  }
}

}  // namespace

std::span<const Candidate> cum_sum_candidates() {
  static constexpr std::array<Candidate, 1> table = {{{"running_sum", plan_cum_sum}}};
  return table;
}

}  // namespace tenon::kernels
