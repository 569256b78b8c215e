// Whether what a program says it touches of its buffers is there: copies, fetches, what the host
// reads and writes. What kernels touch by themselves only their texts know.
#pragma once

#include "kernels/running/program.h"
#include "kernels/running/shape_instance.h"

namespace tenon::kernels {

// At the sizes of one instance. Throws UserError that names node and buffer: such a program came
// from a file that was made by hand.
void check_bounds(const Program& program, const ShapeInstance& instance);

}  // namespace tenon::kernels
