#include "kernels/llvm/loop/axes.h"

#include <algorithm>

#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

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

}  // namespace

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

int widest_computed_bytes(const LoopProblem& problem) {
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

int widest_stored_bytes(const LoopProblem& problem) {
  int bits = 8;
  const auto widen = [&](ir::ValueId id) {
    bits = std::max(bits, bit_width(problem.body->value(id).dtype));
  };
  for (const tiling::Access& load : problem.loads) {
    if (!problem.is_baked(load.input)) widen(load.input);
  }
  for (const LoopStore& store : problem.stores) widen(store.value);
  return bits / 8;
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

bool needs_flat_lanes(const LoopProblem& problem, int vector_axis) {
  if (!problem.reduced_axes.empty() || problem.domain.empty()) return false;
  if (problem.ordered_axis >= 0) return false;
  return std::any_of(problem.stores.begin(), problem.stores.end(), [&](const LoopStore& store) {
    return !is_byte_aligned(store.place, vector_axis, problem.body->value(store.value).dtype);
  });
}

void order_axes(const LoopProblem& problem, LoopSchedule& schedule) {
  if (schedule.flat) {
    schedule.vector_size = element_count(problem.domain);
    return;
  }
  for (int axis = 0; axis < static_cast<int>(problem.domain.size()); ++axis) {
    if (schedule.is_vector(axis)) continue;
    (problem.is_reduced(axis) ? schedule.reduced_axes : schedule.outer_axes).push_back(axis);
  }
  if (problem.ordered_axis >= 0) {
    schedule.row_axis = problem.ordered_axis;
    std::erase(schedule.outer_axes, schedule.row_axis);
  } else if (!schedule.outer_axes.empty()) {
    schedule.row_axis = schedule.outer_axes.back();
    schedule.outer_axes.pop_back();
  }
  if (schedule.vector_axis < 0) {
    schedule.vector_size = 1;
    return;
  }
  schedule.vector_size = problem.domain[schedule.vector_axis];
  if (problem.is_reduced(schedule.vector_axis)) {
    schedule.reduced_axes.push_back(schedule.vector_axis);
  }
}

int turned_axis(const LoopProblem& problem, int vector_axis) {
  for (const tiling::Access& load : problem.loads) {
    const Dim& stride = load.strides[vector_axis];
    if (problem.is_baked(load.input) || stride.is(0) || stride.is(1)) continue;
    for (int axis = 0; axis < static_cast<int>(problem.domain.size()); ++axis) {
      if (axis != vector_axis && load.strides[axis].is(1)) return axis;
    }
  }
  return -1;
}

void walk_rows_along(int axis, LoopSchedule& schedule) {
  if (schedule.row_axis == axis) return;
  std::replace(schedule.outer_axes.begin(), schedule.outer_axes.end(), axis, schedule.row_axis);
  std::sort(schedule.outer_axes.begin(), schedule.outer_axes.end());
  schedule.row_axis = axis;
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

}  // namespace tenon::kernels
