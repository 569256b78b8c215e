#include "tests/distributed/nccl_ranks.h"

#include <array>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "kernels/device/vendor_library.h"

namespace tenon::distributed {
namespace {

class HostDevice final : public RankDevice {
 public:
  HostDevice(int compute_major, std::string place)
      : compute_major_(compute_major), place_(std::move(place)) {}
  void make_current() override {}
  int compute_major() const override { return compute_major_; }
  std::string place() const override { return place_; }
  std::string arch() const override { return "sm_" + std::to_string(compute_major_) + "0"; }
  void* scratch() override { return scratch_.data(); }
  void fill_zeros(void* memory, size_t bytes, void*) override { std::memset(memory, 0, bytes); }

 private:
  const int compute_major_;
  const std::string place_;
  std::array<char, 16> scratch_{};
};

}  // namespace

StubNccl stub_nccl(int version) {
  const std::vector<std::string> path{TENON_STUB_NCCL};
  const auto opened = device::open_vendor_library(path);
  if (!opened.library) throw std::runtime_error(opened.why);
  StubNccl stub;
  const device::VendorLibrary& library = *opened.library;
  if (!library.find("stubNcclSetVersion", stub.set_version) ||
      !library.find("stubNcclFail", stub.fail) || !library.find("stubNcclRelease", stub.release) ||
      !library.find("stubNcclLive", stub.live) || !library.find("stubNcclPending", stub.pending) ||
      !library.find("stubNcclMaxCtas", stub.max_ctas)) {
    throw std::runtime_error("the stub lacks a function");
  }
  stub.set_version(version);
  const NcclAnswer answer = load_nccl(path);
  if (!answer.support) throw std::runtime_error(answer.support.reason);
  stub.functions = answer.functions;
  return stub;
}

std::shared_ptr<RankDevice> host_device(int compute_major, const std::string& place) {
  return std::make_shared<HostDevice>(compute_major, place);
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
