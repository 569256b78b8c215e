// Ranks that exchange tensors of their GPUs through NVSHMEM, one process each, for those who ask
// for it: all_reduce, broadcast and barrier.
//
// What is exchanged goes through memory that NVSHMEM gave, in pieces of its size. NVSHMEM knows no
// abort: what a lost rank is waited for in stays on the stream, whose own wait has a deadline, and
// this process can use NVSHMEM no more. Some of its errors end the process (docs/distributed.md).
#pragma once

#include <memory>

#include "distributed/communicator.h"
#include "distributed/nvshmem_library.h"
#include "distributed/rank_device.h"

namespace tenon::distributed {

struct NvshmemSettings {
  Communicator::Settings common;
  size_t piece_bytes = size_t{16} << 20;  // the same on all ranks; twice that is allocated
};

// By one rank, for all of them. Throws CollectiveError.
NvshmemId make_nvshmem_id(const NvshmemFunctions& functions);

// Comes back when all ranks have called it with the same id. One job at a time in a process. Throws
// CollectiveError.
std::unique_ptr<Communicator> make_nvshmem(const NvshmemFunctions& functions, const NvshmemId& id,
                                           int rank, int size, std::shared_ptr<RankDevice> device,
                                           const NvshmemSettings& settings = {});

}  // namespace tenon::distributed
