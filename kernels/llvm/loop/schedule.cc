#include "kernels/llvm/loop/schedule.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "graph_partitioner/ir/primitives.h"
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

AxisSet bit(int axis) { return AxisSet{1} << axis; }

AxisSet axes_of_sum(const std::vector<Dim>& strides, const std::vector<tiling::BlockTerm>& blocks) {
  AxisSet axes = 0;
  for (size_t axis = 0; axis < strides.size(); ++axis) {
    if (!strides[axis].is(0)) axes |= bit(static_cast<int>(axis));
  }
  for (const tiling::BlockTerm& block : blocks) axes |= bit(block.axis);
  return axes;
}

bool is_complex_along(const tiling::Access& access, int axis) {
  for (const tiling::BlockTerm& block : access.blocks) {
    if (block.axis == axis) return true;
  }
  for (const tiling::GatherTerm& term : access.gathers) {
    if (axes_of(term) & bit(axis)) return true;
  }
  for (const tiling::Guard& guard : access.guards) {
    for (const tiling::Bound& bound : guard.bounds) {
      if (bound.axis == axis) return true;
    }
  }
  return false;
}

// How well lanes along `axis` suit one access: neighbours in memory, one element for all, or
// elements picked one by one.
int suitability(const tiling::Access& access, int axis) {
  if (is_complex_along(access, axis)) return 1;
  if (access.strides[axis].is(1)) return 4;
  if (access.strides[axis].is(0)) return 3;
  return 0;
}

int choose_vector_axis(const LoopProblem& problem) {
  int best = -1, best_score = -1;
  for (int axis = 0; axis < static_cast<int>(problem.domain.size()); ++axis) {
    if (axis == problem.ordered_axis) continue;
    int score = 0;
    for (const tiling::Access& load : problem.loads) {
      if (!problem.is_baked(load.input)) score += suitability(load, axis);
    }
    for (const LoopStore& store : problem.stores) score += 2 * suitability(store.place, axis);
    const Dim& size = problem.domain[axis];
    if (size.is_constant() && size.value() < 4) score /= 2;
    if (score >= best_score) {
      best = axis;
      best_score = score;
    }
  }
  return best;
}

int widest_bytes(const LoopProblem& problem) {
  int bits = 8;
  const auto widen = [&](ir::ValueId id) {
    bits = std::max(bits, bit_width(compute_type(problem.body->value(id).dtype)));
  };
  for (const tiling::Access& load : problem.loads) widen(load.value);
  for (ir::NodeId id : problem.region) {
    for (ir::ValueId output : problem.body->node(id).outputs) {
      if (output != ir::kNoValue) widen(output);
    }
  }
  return bits / 8;
}

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

bool is_plain_along(const LoopProblem& problem, int axis) {
  const auto is_named = [&](const auto& position) { return position.second == axis; };
  if (std::any_of(problem.positions.begin(), problem.positions.end(), is_named)) return false;
  const auto is_plain = [&](const tiling::Access& access) {
    return !is_complex_along(access, axis) && access.guards.empty();
  };
  return std::all_of(problem.loads.begin(), problem.loads.end(), is_plain) &&
         std::all_of(problem.stores.begin(), problem.stores.end(),
                     [&](const LoopStore& store) { return is_plain(store.place); });
}

bool has_packed_elements(const LoopProblem& problem) {
  const auto packed = [&](ir::ValueId id) { return is_packed(problem.body->value(id).dtype); };
  return std::any_of(problem.loads.begin(), problem.loads.end(),
                     [&](const tiling::Access& load) { return packed(load.input); }) ||
         std::any_of(problem.stores.begin(), problem.stores.end(),
                     [&](const LoopStore& store) { return packed(store.value); });
}

class Scheduler {
 public:
  Scheduler(const LoopProblem& problem, const codegen::HostTarget& target)
      : problem_(problem), target_(target) {}

  LoopSchedule run() {
    schedule_.vector_axis = choose_vector_axis(problem_);
    schedule_.flat = needs_flat_lanes();
    if (schedule_.flat) schedule_.vector_axis = -1;
    order_axes();
    choose_lanes();
    choose_squares();
    split_tasks();
    plan_stages(problem_, schedule_);
    return std::move(schedule_);
  }

 private:
  // Sub-byte elements are stored a byte at a time, so each row must begin with a whole one.
  bool needs_flat_lanes() const {
    if (!problem_.reduced_axes.empty() || problem_.domain.empty()) return false;
    if (problem_.ordered_axis >= 0) return false;
    return std::any_of(problem_.stores.begin(), problem_.stores.end(), [&](const LoopStore& store) {
      return !is_byte_aligned(store.place, schedule_.vector_axis,
                              problem_.body->value(store.value).dtype);
    });
  }

  void order_axes() {
    if (schedule_.flat) {
      schedule_.vector_size = element_count(problem_.domain);
      return;
    }
    for (int axis = 0; axis < static_cast<int>(problem_.domain.size()); ++axis) {
      if (schedule_.is_vector(axis)) continue;
      (problem_.is_reduced(axis) ? schedule_.reduced_axes : schedule_.outer_axes).push_back(axis);
    }
    if (problem_.ordered_axis >= 0) {
      schedule_.row_axis = problem_.ordered_axis;
      std::erase(schedule_.outer_axes, schedule_.row_axis);
    } else if (!schedule_.outer_axes.empty()) {
      schedule_.row_axis = schedule_.outer_axes.back();
      schedule_.outer_axes.pop_back();
    }
    if (schedule_.vector_axis < 0) {
      schedule_.vector_size = 1;
      return;
    }
    schedule_.vector_size = problem_.domain[schedule_.vector_axis];
    if (problem_.is_reduced(schedule_.vector_axis)) {
      schedule_.reduced_axes.push_back(schedule_.vector_axis);
    }
  }

  void choose_lanes() {
    if (schedule_.vector_axis < 0 && !schedule_.flat) return;
    const int full = std::max(2, target_.vector_bits / 8 / std::max(4, widest_bytes(problem_)));
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

  // The axis along which a load reads neighbours while the lanes do not; -1: none.
  int turned_axis() const {
    for (const tiling::Access& load : problem_.loads) {
      const Dim& stride = load.strides[schedule_.vector_axis];
      if (problem_.is_baked(load.input) || stride.is(0) || stride.is(1)) continue;
      for (int axis = 0; axis < static_cast<int>(problem_.domain.size()); ++axis) {
        if (!schedule_.is_vector(axis) && load.strides[axis].is(1)) return axis;
      }
    }
    return -1;
  }

  void choose_squares() {
    if (schedule_.flat || schedule_.vector_axis < 0 || problem_.ordered_axis >= 0 ||
        !problem_.reduced_axes.empty() || has_packed_elements(problem_)) {
      return;
    }
    // Larger squares take three times as long to compile and are no faster.
    const int size = std::min(8, target_.vector_bits / 8 / std::max(4, widest_bytes(problem_)));
    const int axis = turned_axis();
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
    if (schedule_.row_axis == axis) return;
    std::replace(schedule_.outer_axes.begin(), schedule_.outer_axes.end(), axis,
                 schedule_.row_axis);
    std::sort(schedule_.outer_axes.begin(), schedule_.outer_axes.end());
    schedule_.row_axis = axis;
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

AxisSet axes_of(const tiling::GatherTerm& term) {
  return axes_of_sum(term.indices_strides, term.indices_blocks);
}

AxisSet axes_of(const tiling::Access& access) {
  AxisSet axes = axes_of_sum(access.strides, access.blocks);
  for (const tiling::GatherTerm& term : access.gathers) axes |= axes_of(term);
  for (const tiling::Guard& guard : access.guards) {
    for (const tiling::Bound& bound : guard.bounds) axes |= bit(bound.axis);
  }
  return axes;
}

bool is_byte_aligned(const tiling::Access& access, int vector_axis, DType dtype) {
  if (!is_packed(dtype)) return true;
  const Dim per_byte = 8 / bit_width(dtype);
  const auto whole = [&](const Dim& dim) { return mod(dim, per_byte).is(0); };
  if (vector_axis < 0 || !access.strides[vector_axis].is(1)) return false;
  if (is_complex_along(access, vector_axis) || !whole(access.offset)) return false;
  for (size_t axis = 0; axis < access.strides.size(); ++axis) {
    if (static_cast<int>(axis) != vector_axis && !whole(access.strides[axis])) return false;
  }
  const auto steps_whole = [&](const auto& term) { return whole(term.stride); };
  return std::all_of(access.blocks.begin(), access.blocks.end(), steps_whole) &&
         std::all_of(access.gathers.begin(), access.gathers.end(), steps_whole);
}

LoopSchedule make_schedule(const LoopProblem& problem, const codegen::HostTarget& target) {
  return Scheduler(problem, target).run();
}

}  // namespace tenon::kernels
