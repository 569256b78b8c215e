// Every collective of a communicator, on every type, against what each rank knows that the others
// bring. Every rank of it calls the same function.
#pragma once

#include "base/dtype.h"
#include "distributed/communicator.h"

namespace tenon::distributed {

// Reductions and calls that the type or the engine does not know are left out.
void check_collectives(Communicator& ranks, DType dtype, int64_t count, uint64_t seed);

}  // namespace tenon::distributed
