#include "kernels/llvm/tensor_scatter.h"

#include <array>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/llvm/index_tuples.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/loop/emitter.h"
#include "kernels/llvm/loop/movement.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::kNone;

// Cache [batch, middle, length, row] and update [batch, middle, added, row]: the axes between the
// batch and the sequence, and those after the sequence, are walked as one each.
struct Problem {
  Dim batch, middle, length, added, row;
  bool circular = false;

  // Positions at which an update may begin: [0, starts).
  Dim starts() const {
    return circular ? Dim(std::numeric_limits<int32_t>::max()) : length - added + Dim(1);
  }

  static Problem from(const ir::Graph& graph, const ir::Node& node) {
    const Shape& cache = *graph.value(node.input(0)).shape;
    const Shape& update = *graph.value(node.input(1)).shape;
    const size_t axis = checked_axis(node.integer("axis", -2), cache.size());
    if (axis == 0) throw UserError("the sequence cannot be the batch axis");
    if (update.size() != cache.size()) throw UserError("update and cache differ in rank");
    const auto count = [&](size_t first, size_t last) {
      return element_count(Shape(cache.begin() + static_cast<std::ptrdiff_t>(first),
                                 cache.begin() + static_cast<std::ptrdiff_t>(last)));
    };
    const std::string mode = node.text("mode", "linear");
    if (mode != "linear" && mode != "circular") throw UserError(fmt::format("mode '{}'", mode));
    return {
        cache[0],          count(1, axis), cache[axis], update[axis], count(axis + 1, cache.size()),
        mode == "circular"};
  }
};

constexpr int kHostLanes = 32, kGpuLanes = 256, kGpuThreads = 64;

// The row in tiles of `lanes`, the last one with an extent.
void copy_row(codegen::Builder& b, codegen::Access to, codegen::Access from, Tile length,
              int lanes) {
  const Tile to_first = to.offset, from_first = from.offset;
  b.loop({b.index(0), length, b.index(lanes)}, {}, [&](Tile at, std::span<const Tile>) {
    to.offset = b.add(to_first, at);
    from.offset = b.add(from_first, at);
    to.strides = from.strides = {b.index(1)};
    to.extents = from.extents = {b.sub(length, at)};
    b.store(to, b.load(from, {lanes}));
    return std::vector<Tile>{};
  });
}

// One task per (batch, middle).
Launch write_rows(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                  const Problem& problem) {
  const DType type = storage_type(graph.value(node.input(0)).dtype);
  const ir::ValueId positions = node.input(2);
  LaunchWriter writer("tensor_scatter");
  codegen::Builder& b = writer.builder;
  const Tile cache = writer.buffer("cache", type, BufferArgument::value(node.output(0)));
  const Tile update = writer.buffer("update", type, BufferArgument::value(node.input(1)));
  const Tile starts =
      positions == ir::kNoValue
          ? kNone
          : writer.buffer("starts", graph.value(positions).dtype, BufferArgument::value(positions));
  for (const Dim& dim :
       {problem.middle, problem.length, problem.added, problem.row, problem.starts()}) {
    writer.declare(dim);
  }
  const Tile batch = b.div({b.task(), writer.index(problem.middle)});
  Tile start = starts == kNone ? b.index(0) : b.index_from(b.load({starts, batch, {}, {}}, {}));
  // A GPU checks nothing before the launch: rows stay inside the cache.
  if (settings.gpu)
    start = b.max({b.index(0), b.min(start, b.sub({writer.index(problem.starts()), b.index(1)}))});
  const Tile length = writer.index(problem.length), row = writer.index(problem.row);
  const Tile added = writer.index(problem.added);
  b.loop({b.index(0), added, b.index(1)}, {}, [&](Tile step, std::span<const Tile>) {
    Tile position = b.add(start, step);
    if (problem.circular) position = b.rem(position, length);
    const Tile to = b.mul(b.add(b.mul(b.task(), length), position), row);
    const Tile from = b.mul(b.add(b.mul(b.task(), added), step), row);
    copy_row(b, {cache, to, {}, {}}, {update, from, {}, {}}, row,
             settings.gpu ? kGpuLanes : kHostLanes);
    return std::vector<Tile>{};
  });
  Launch launch = writer.finish(problem.batch * problem.middle,
                                floor_div(problem.added * problem.row, Dim(8)) + Dim(20));
  launch.threads = kGpuThreads;
  if (settings.gpu) launch.tasks = launch.tasks * max(Dim(0), min(Dim(1), problem.starts()));
  if (positions != ir::kNoValue) {
    launch.checks.push_back({.value = positions, .bound = problem.starts(), .from_end = false});
  }
  return launch;
}

Planned plan_tensor_scatter(const ir::Graph& graph, const ir::Node& node,
                            const Settings& settings) {
  const DType type = graph.value(node.input(0)).dtype;
  if (Support answer = supports_type(type); !answer) return answer;
  if (is_packed(type))
    return Planned::no(fmt::format("scatter into sub-byte type {} is not supported", name(type)));
  try {
    if (node.input(2) != ir::kNoValue) require_indices(graph, node.input(2));
    const Problem problem = Problem::from(graph, node);
    return Plan::of({Skeleton::kLoop}, [&graph, &node, &settings, problem] {
      Lowered lowered;
      Launch copy = emit_loop(copy_problem(graph, node.input(0), node.output(0)), settings);
      copy.elidable_copy = ElidableCopy{node.input(0), node.output(0)};
      lowered.launches.push_back(std::move(copy));
      lowered.launches.push_back(write_rows(graph, node, settings, problem));
      return lowered;
    });
  } catch (const UserError& error) {
    return Planned::no(error.what());
  }
}

}  // namespace

std::span<const Candidate> tensor_scatter_candidates() {
  static constexpr std::array<Candidate, 1> table = {{{"copy_then_write", plan_tensor_scatter}}};
  return table;
}

}  // namespace tenon::kernels
