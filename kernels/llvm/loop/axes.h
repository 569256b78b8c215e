// What schedules ask about the axes of a loop problem, whatever machine they are for.
#pragma once

#include "kernels/llvm/loop/schedule.h"

namespace tenon::kernels {

// How well lanes along `axis` suit one access: 4 neighbours in memory, 3 one element for all, below
// 2 elements picked one by one.
int suitability(const tiling::Access& access, int axis);
// The axis that suits most accesses; -1 where the domain is a single point.
int choose_vector_axis(const LoopProblem& problem);

// Sub-byte elements are stored a byte at a time, so each row must begin with a whole one: where it
// does not, lanes have to run over the whole domain.
bool needs_flat_lanes(const LoopProblem& problem, int vector_axis);

// Fills in row, outer and reduced axes and the vector size, for the vector axis or flat lanes that
// `schedule` has.
void order_axes(const LoopProblem& problem, LoopSchedule& schedule);

// The axis along which a load reads neighbours while the lanes do not; -1: none.
int turned_axis(const LoopProblem& problem, int vector_axis);
// Makes `axis` the row axis instead of an outer one.
void walk_rows_along(int axis, LoopSchedule& schedule);

// Whether every access steps by a fixed stride along `axis` and nothing asks for the coordinate.
bool is_plain_along(const LoopProblem& problem, int axis);
bool has_packed_elements(const LoopProblem& problem);

int widest_computed_bytes(const LoopProblem& problem);
int widest_stored_bytes(const LoopProblem& problem);

}  // namespace tenon::kernels
