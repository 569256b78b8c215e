// Ranks as threads of one process, on host memory: for tests, and for a look at how several ranks
// behave where there is one machine and no GPU.
#pragma once

#include <memory>
#include <vector>

#include "distributed/communicator.h"

namespace tenon::distributed {

// One communicator for each rank. What one of them fails in, all do: a rank that is late, that
// calls something else than its peers, aborts or is destroyed while others wait for it.
std::vector<std::unique_ptr<Communicator>> make_loopback(int size,
                                                         Communicator::Settings settings = {});

}  // namespace tenon::distributed
