// Communicators of ranks that have met in a store. All ranks call the same function.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "distributed/rank_device.h"
#include "distributed/rendezvous/store.h"

namespace tenon::distributed {

// Host processes, by `backend`: through memory that they share ("shm"), through Gloo ("gloo"), or
// through the first of these that all of them can use ("auto"). `towards`: the host at which the
// store is. The store outlives the communicator. Throws UserError where the backend cannot be used.
std::unique_ptr<Communicator> connect_host(Store& store, const std::string& backend,
                                           const std::string& towards,
                                           std::chrono::milliseconds deadline);

struct NcclOptions {
  std::chrono::milliseconds deadline{60'000};
  bool peer_memory =
      true;  // small sums go through memory that ranks of one host share, if they can
  bool mixes_graphs = true;  // as of NcclSettings
};
// Processes with a GPU each. Throws UserError where two share one and NCCL was not told to allow
// that, and where NCCL or the kind of GPU differ between ranks.
std::unique_ptr<Communicator> connect_nccl(Store& store, std::shared_ptr<RankDevice> gpu,
                                           const NcclOptions& options);

// The sentence about ranks that share a GPU; empty: none do. `places`: by rank, equal for the same
// GPU of the same host.
std::string shared_gpu(const std::vector<std::string>& places);

}  // namespace tenon::distributed
