// Ranks as processes of one host, through memory that they share.
//
// Whoever reduces does it as element_ops.h says, from the first rank to the last: every element is
// reduced by one rank, or by all in the same way, so that all get the same bits, and those of
// loopback. No thread but the caller's takes part.
#pragma once

#include <memory>
#include <string>

#include "distributed/communicator.h"
#include "distributed/key_values.h"

namespace tenon::distributed {

struct SharedMemoryRanks {
  std::unique_ptr<Communicator> communicator;  // null: it cannot be, on any of them
  std::string why;  // "rank 2 cannot open memory that all ranks share: …"
};

// Comes back when all ranks have called it, with the same answer on all of them. `store` is one in
// which no communicator was made before, under `name`; its ranks are those of the communicator.
// Throws CollectiveError where one does not come.
SharedMemoryRanks make_shared_memory(int rank, int size, KeyValues store,
                                     const Communicator::Settings& settings = {},
                                     const std::string& name = "shared memory");

}  // namespace tenon::distributed
