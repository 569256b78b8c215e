// Communicators of the stub's NCCL, each rank a thread with host memory.
#pragma once

#include <string>
#include <vector>

#include "distributed/nccl.h"
#include "tests/distributed/host_device.h"
#include "tests/distributed/ranks.h"
#include "tests/distributed/stub_nccl/control.h"

namespace tenon::distributed {

struct StubNccl {
  NcclFunctions functions;
  StubSetVersion set_version = nullptr;
  StubFail fail = nullptr;
  StubRelease release = nullptr;
  StubLive live = nullptr;
  StubPending pending = nullptr;
  StubMaxCtas max_ctas = nullptr;
  StubGraphUsageMode graph_usage_mode = nullptr;
  StubSetWindows set_windows = nullptr;
  StubWindows windows = nullptr;
  StubMemory memory = nullptr;
};

// As if it were this version.
StubNccl stub_nccl(int version = 22809);

// One for each rank; null and a text in `thrown` for those that were not made.
struct NcclRanks {
  Communicators ranks;
  std::vector<std::string> thrown;
};
NcclRanks make_ranks(const StubNccl& stub, int size, const NcclSettings& settings = {},
                     int compute_major = 9);

}  // namespace tenon::distributed
