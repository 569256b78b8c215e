// Collectives of a graph as calls of a communicator: how kernels/ sees the ranks of a job.
#pragma once

#include <memory>

#include "distributed/communicator.h"
#include "kernels/planning/collectives.h"

namespace tenon::distributed {

// Groups get communicators of their own, made by the first call that needs one, which all ranks
// make in the same order. The communicator lives as long as what was made of it.
std::shared_ptr<const kernels::Collectives> make_collectives(
    std::shared_ptr<Communicator> communicator);

}  // namespace tenon::distributed
