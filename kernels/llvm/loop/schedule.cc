#include "kernels/llvm/loop/schedule.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "graph_partitioner/ir/primitives.h"
#include "kernels/llvm/loop/axes.h"
#include "kernels/llvm/loop/stages.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

// Rough picoseconds for one element of an op in full vectors of 16 lanes.
constexpr int64_t kCheapPicoseconds = 30;
constexpr int64_t kExpensivePicoseconds = 600;
constexpr int64_t kAccessPicoseconds = 60;
constexpr int64_t kGatherPicoseconds = 500;
// A task should last a few microseconds: enough to hide its start, little enough to balance.
constexpr int64_t kTaskPicoseconds = 4'000'000;
constexpr int64_t kMinTaskElements = 256, kMaxTaskElements = 16384;
// Length of a turned row that one task covers: each step along it touches another page.
constexpr int64_t kTurnedElements = 128;

int64_t region_picoseconds(const LoopProblem& problem) {
  int64_t cost = 0;
  for (ir::NodeId id : problem.region) {
    const ir::Primitive* primitive = ir::find_primitive(problem.body->node(id).op);
    const bool heavy = primitive != nullptr && primitive->expensive &&
                       primitive->kind == ir::PrimitiveClass::kPointwise;
    cost += heavy ? kExpensivePicoseconds : kCheapPicoseconds;
  }
  return cost;
}

int64_t access_picoseconds(const tiling::Access& access, int vector_axis) {
  const bool picked = vector_axis < 0 || suitability(access, vector_axis) < 2;
  return picked ? kGatherPicoseconds : kAccessPicoseconds;
}

class Scheduler {
 public:
  Scheduler(const LoopProblem& problem, const codegen::HostTarget& target)
      : problem_(problem), target_(target) {}

  LoopSchedule run() {
    schedule_.vector_axis = choose_vector_axis(problem_);
    schedule_.flat = needs_flat_lanes(problem_, schedule_.vector_axis);
    if (schedule_.flat) schedule_.vector_axis = -1;
    order_axes(problem_, schedule_);
    choose_lanes();
    choose_squares();
    split_tasks();
    plan_stages(problem_, schedule_, {});
    return std::move(schedule_);
  }

 private:
  void choose_lanes() {
    if (schedule_.vector_axis < 0 && !schedule_.flat) return;
    const int full =
        std::max(2, target_.vector_bits / 8 / std::max(4, widest_computed_bytes(problem_)));
    // Several registers per value hide latencies until the values no longer fit.
    const int64_t cost = region_picoseconds(problem_);
    const int unroll = cost <= 10 * kCheapPicoseconds ? 4 : cost <= 40 * kCheapPicoseconds ? 2 : 1;
    int lanes = full * unroll;
    if (schedule_.vector_size.is_constant()) {
      const auto size = static_cast<uint64_t>(std::max<int64_t>(2, schedule_.vector_size.value()));
      while (lanes > full && size % lanes != 0) lanes /= 2;
      if (size < static_cast<uint64_t>(lanes)) lanes = static_cast<int>(std::bit_ceil(size));
    }
    schedule_.lanes = std::max(lanes, 2);
    for (const LoopStore& store : problem_.stores) {
      const int bits = bit_width(problem_.body->value(store.value).dtype);
      if (bits < 8) schedule_.lanes = std::max(schedule_.lanes, 8 / bits);
    }
  }

  void choose_squares() {
    if (schedule_.flat || schedule_.vector_axis < 0 || problem_.ordered_axis >= 0 ||
        !problem_.reduced_axes.empty() || has_packed_elements(problem_)) {
      return;
    }
    // Larger squares take three times as long to compile and are no faster.
    const int size =
        std::min(8, target_.vector_bits / 8 / std::max(4, widest_computed_bytes(problem_)));
    const int axis = turned_axis(problem_, schedule_.vector_axis);
    const auto is_long = [&](const Dim& dim) {
      return !dim.is_constant() || dim.value() >= size / 2;
    };
    if (axis < 0 || size < 4 || !is_long(problem_.domain[axis]) ||
        !is_long(schedule_.vector_size) || !is_plain_along(problem_, axis) ||
        !is_plain_along(problem_, schedule_.vector_axis)) {
      return;
    }
    if (region_picoseconds(problem_) > 10 * kCheapPicoseconds) return;
    schedule_.lanes = schedule_.tile_rows = size;
    walk_rows_along(axis, schedule_);
  }

  int64_t element_picoseconds() const {
    int64_t cost = region_picoseconds(problem_) * 16 / std::max(1, target_.lanes_f32());
    for (const tiling::Access& load : problem_.loads) {
      cost += access_picoseconds(load, schedule_.vector_axis);
    }
    for (const LoopStore& store : problem_.stores) {
      cost += access_picoseconds(store.place, schedule_.vector_axis);
    }
    return std::max<int64_t>(cost, 1);
  }

  Dim whole_tiles(const Dim& rows) const {
    return ceil_div(rows, Dim(schedule_.tile_rows)) * Dim(schedule_.tile_rows);
  }

  void split_tasks() {
    const int64_t cost = element_picoseconds();
    const int64_t wanted = std::clamp(kTaskPicoseconds / cost, kMinTaskElements, kMaxTaskElements);
    const auto elements = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(wanted)));

    Dim reduced = 1;
    for (int axis : schedule_.reduced_axes) reduced = reduced * problem_.domain[axis];
    Dim row_elements = reduced;
    const bool vector_kept = schedule_.flat || (schedule_.vector_axis >= 0 &&
                                                !problem_.is_reduced(schedule_.vector_axis));
    if (vector_kept) {
      const Dim& size = schedule_.vector_size;
      const int64_t length = schedule_.tile_rows > 1 ? kTurnedElements : elements;
      const bool one_chunk = size.is_constant() && size.value() <= 2 * length;
      schedule_.vector_chunk = one_chunk ? size : Dim(length);
      schedule_.vector_chunks = one_chunk ? Dim(1) : ceil_div(size, Dim(length));
      row_elements = row_elements * (one_chunk ? size : min(size, Dim(length)));
    }
    Dim rows = 1;
    if (schedule_.row_axis >= 0) {
      const Dim& size = problem_.domain[schedule_.row_axis];
      const bool together = schedule_.row_axis == problem_.ordered_axis;
      const Dim rows_wanted = floor_div(Dim(elements), max(row_elements, Dim(1)));
      schedule_.row_chunk = together ? size : whole_tiles(max(Dim(1), rows_wanted));
      schedule_.row_chunks = together ? Dim(1) : ceil_div(size, schedule_.row_chunk);
      rows = min(size, schedule_.row_chunk);
    }
    Dim outer = 1;
    for (int axis : schedule_.outer_axes) outer = outer * problem_.domain[axis];
    schedule_.tasks = outer * schedule_.row_chunks * schedule_.vector_chunks;
    if (vector_kept && schedule_.vector_size.is(0)) schedule_.tasks = 0;
    schedule_.task_cost = floor_div(rows * row_elements * Dim(cost), Dim(1000)) + Dim(1);
  }

  const LoopProblem& problem_;
  const codegen::HostTarget& target_;
  LoopSchedule schedule_;
};

}  // namespace

std::vector<int> LoopSchedule::tile_shape() const {
  if (!flat && vector_axis < 0) return {};
  return tile_rows > 1 ? std::vector<int>{tile_rows, lanes} : std::vector<int>{lanes};
}

LoopSchedule make_schedule(const LoopProblem& problem, const Settings& settings) {
  if (settings.gpu) return make_gpu_schedule(problem, *settings.gpu);
  return Scheduler(problem, settings.host).run();
}

}  // namespace tenon::kernels
