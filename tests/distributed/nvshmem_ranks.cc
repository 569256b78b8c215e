#include "tests/distributed/nvshmem_ranks.h"

#include <stdexcept>

#include "kernels/device/vendor_library.h"
#include "tests/distributed/host_device.h"

namespace tenon::distributed {

const StubNvshmem& stub_nvshmem(int version) {
  static StubNvshmem& stub = *new StubNvshmem;
  const std::vector<std::string> path{TENON_STUB_NVSHMEM};
  const auto opened = device::open_vendor_library(path);
  if (!opened.library) throw std::runtime_error(opened.why);
  const device::VendorLibrary& library = *opened.library;
  if (!library.find("stubNvshmemSetVersion", stub.set_version) ||
      !library.find("stubNvshmemFail", stub.fail) ||
      !library.find("stubNvshmemShareGpu", stub.share_gpu) ||
      !library.find("stubNvshmemPending", stub.pending) ||
      !library.find("stubNvshmemLive", stub.live)) {
    throw std::runtime_error("the stub lacks a function");
  }
  stub.set_version(version);
  const NvshmemAnswer answer = load_nvshmem(path);
  if (!answer.support) throw std::runtime_error(answer.support.reason);
  stub.functions = answer.functions;
  return stub;
}

std::unique_ptr<Communicator> make_ranks(const NvshmemId& id, int rank, int size,
                                         const NvshmemSettings& settings) {
  // What the stub has for a rank is small, so that most calls are done in pieces.
  NvshmemSettings small = settings;
  small.piece_bytes = 100;
  return make_nvshmem(stub_nvshmem().functions, id, rank, size, host_device(), small);
}

std::vector<Ended> run_nvshmem(int size, const NvshmemSettings& settings,
                               const std::function<void(Communicator&)>& body,
                               const std::function<void(int rank)>& before) {
  const NvshmemId id = make_nvshmem_id(stub_nvshmem().functions);
  return run_processes(size, [&](int rank) {
    if (before) before(rank);
    const auto ranks = make_ranks(id, rank, size, settings);
    body(*ranks);
  });
}

}  // namespace tenon::distributed
