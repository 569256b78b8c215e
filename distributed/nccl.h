// Ranks that exchange tensors of their GPUs through NCCL, one process each.
//
// Communicators do not block: a call that peers are waited for in is polled until the deadline.
// After any error NCCL's communicator is aborted, which ends its kernels too.
#pragma once

#include <memory>

#include "distributed/communicator.h"
#include "distributed/nccl_library.h"
#include "distributed/peer_sum.h"
#include "distributed/rank_device.h"

namespace tenon::distributed {

struct NcclSettings {
  Communicator::Settings common;
  int max_ctas = 0;  // 0: see nccl_max_ctas
  // False: the caller sees to it that no graph with collectives of the communicator runs beside
  // another, and that none is called while one runs. It has an effect from 2.29 on.
  bool mixes_graphs = true;
};

// By one rank, for all of them. Throws CollectiveError.
NcclId make_nccl_id(const NcclFunctions& functions);

// Comes back when all ranks have called it with the same id. `peers`: of the same ranks, take
// what is small, or the reason why not. Throws CollectiveError.
std::unique_ptr<Communicator> make_nccl(const NcclFunctions& functions, const NcclId& id, int rank,
                                        int size, std::shared_ptr<RankDevice> device,
                                        const NcclSettings& settings = {},
                                        PeerSum::Answer peers = {});

}  // namespace tenon::distributed
