#include "tests/distributed/nccl_ranks.h"

#include <stdexcept>
#include <thread>

#include "kernels/device/vendor_library.h"

namespace tenon::distributed {

StubNccl stub_nccl(int version) {
  const std::vector<std::string> path{TENON_STUB_NCCL};
  const auto opened = device::open_vendor_library(path);
  if (!opened.library) throw std::runtime_error(opened.why);
  StubNccl stub;
  const device::VendorLibrary& library = *opened.library;
  if (!library.find("stubNcclSetVersion", stub.set_version) ||
      !library.find("stubNcclFail", stub.fail) || !library.find("stubNcclRelease", stub.release) ||
      !library.find("stubNcclLive", stub.live) || !library.find("stubNcclPending", stub.pending) ||
      !library.find("stubNcclMaxCtas", stub.max_ctas) ||
      !library.find("stubNcclGraphUsageMode", stub.graph_usage_mode) ||
      !library.find("stubNcclSetWindows", stub.set_windows) ||
      !library.find("stubNcclWindows", stub.windows) ||
      !library.find("stubNcclMemory", stub.memory)) {
    throw std::runtime_error("the stub lacks a function");
  }
  stub.set_version(version);
  stub.set_windows(1);
  const NcclAnswer answer = load_nccl(path);
  if (!answer.support) throw std::runtime_error(answer.support.reason);
  stub.functions = answer.functions;
  return stub;
}

NcclRanks make_ranks(const StubNccl& stub, int size, const NcclSettings& settings,
                     int compute_major) {
  NcclRanks made{Communicators(size), std::vector<std::string>(size)};
  const NcclId id = make_nccl_id(stub.functions);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      made.thrown[rank] = thrown_by([&] {
        made.ranks[rank] =
            make_nccl(stub.functions, id, rank, size, host_device(compute_major), settings);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return made;
}

}  // namespace tenon::distributed
