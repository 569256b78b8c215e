// Communicators of the stub's NVSHMEM, each rank a process with host memory.
#pragma once

#include <functional>
#include <vector>

#include "distributed/nvshmem.h"
#include "tests/distributed/processes.h"
#include "tests/distributed/stub_nvshmem/control.h"

namespace tenon::distributed {

struct StubNvshmem {
  NvshmemFunctions functions;
  StubNvshmemSetVersion set_version = nullptr;
  StubNvshmemFail fail = nullptr;
  StubNvshmemShareGpu share_gpu = nullptr;
  StubNvshmemPending pending = nullptr;
  StubNvshmemLive live = nullptr;
};

// As if it were this version. One for a process.
const StubNvshmem& stub_nvshmem(int version = 30800);

std::unique_ptr<Communicator> make_ranks(const NvshmemId& id, int rank, int size,
                                         const NvshmemSettings& settings = {});

// `body` in processes that have a communicator each; `before` in each of them before that.
std::vector<Ended> run_nvshmem(int size, const NvshmemSettings& settings,
                               const std::function<void(Communicator&)>& body,
                               const std::function<void(int rank)>& before = {});

}  // namespace tenon::distributed
