#include "distributed/peer_memory.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/error.h"
#include "kernels/device/stream.h"

namespace tenon::distributed {
namespace {

using device::IpcHandle;

// CUDA shares whole pages of this size: smaller memory would bring neighbours of ours along.
constexpr size_t kPage = size_t{2} << 20;

// A rank that cannot says why in place of a handle.
constexpr char kHandle = 'h', kReason = 'r';

// The first rank's that cannot, as a sentence; empty: all can.
std::string first_reason(const std::vector<std::string>& answers) {
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    if (answers[rank].empty() || answers[rank][0] != kReason) continue;
    return fmt::format("rank {}: {}", rank, answers[rank].substr(1));
  }
  return "";
}

std::string answer_of(const std::string& reason, const std::string& handle = "") {
  return reason.empty() ? kHandle + handle : kReason + reason;
}

}  // namespace

PeerMemory::PeerMemory(Store& store, std::shared_ptr<device::Device> device)
    : device_(std::move(device)), rank_(store.rank()), addresses_(store.size()) {}

PeerMemory::Answer PeerMemory::share(Store& store, std::shared_ptr<device::Device> device,
                                     size_t bytes, std::chrono::milliseconds deadline) {
  auto memory = std::unique_ptr<PeerMemory>(new PeerMemory(store, std::move(device)));
  std::string handle;
  const std::string not_exported = memory->exported(bytes, handle);
  auto answers = store.all_gather("peer memory", answer_of(not_exported, handle), deadline);
  if (std::string reason = first_reason(answers); !reason.empty()) return {nullptr, reason};
  const std::string not_opened = memory->opened(answers);
  answers = store.all_gather("peer memory is mapped", answer_of(not_opened), deadline);
  if (std::string reason = first_reason(answers); !reason.empty()) return {nullptr, reason};
  return {std::move(memory), ""};
}

std::string PeerMemory::exported(size_t bytes, std::string& handle) {
  const device::Driver& driver = device_->driver();
  if (driver.ipc_export == nullptr || driver.ipc_open == nullptr || driver.ipc_close == nullptr) {
    return "the driver shares no memory between processes";
  }
  try {
    const size_t pages = (bytes + kPage - 1) / kPage * kPage;
    mine_ = device::Buffer(device_, pages, "what other ranks write");
    device::Stream stream(device_);
    stream.fill(mine_.address(), 0, pages);
    stream.synchronize();
    IpcHandle made;
    device_->check(driver.ipc_export(&made, mine_.address()), "share memory with other processes");
    handle.assign(made.bytes, sizeof(made.bytes));
  } catch (const UserError& error) {
    return error.what();
  }
  addresses_[rank_] = mine_.address();
  return "";
}

std::string PeerMemory::opened(const std::vector<std::string>& handles) {
  constexpr unsigned kReachOtherGpus = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
  try {
    device_->make_current();
    for (int rank = 0; rank < ranks(); ++rank) {
      if (rank == rank_) continue;
      IpcHandle handle;
      if (handles[rank].size() != 1 + sizeof(handle.bytes)) return "a handle of another size";
      std::memcpy(handle.bytes, handles[rank].data() + 1, sizeof(handle.bytes));
      device_->check(device_->driver().ipc_open(&addresses_[rank], handle, kReachOtherGpus),
                     fmt::format("map memory of rank {}", rank));
    }
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

PeerMemory::~PeerMemory() {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == rank_ || addresses_[rank] == 0 || !device_->try_make_current()) continue;
    device_->note(device_->driver().ipc_close(addresses_[rank]));
  }
}

}  // namespace tenon::distributed
