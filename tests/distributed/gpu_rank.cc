#include "tests/distributed/gpu_rank.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "distributed/connect_ranks.h"
#include "distributed/nccl.h"
#include "distributed/nvshmem.h"
#include "tests/distributed/staged_ranks.h"

namespace tenon::distributed {
namespace {

// The first NCCL that lets two ranks share a GPU, where NCCL_MULTI_RANK_GPU_ENABLE says so.
constexpr int kFirstToShareGpus = 23000;

std::shared_ptr<device::Device> open_gpu(int rank) {
  const auto count = static_cast<int>(device::Device::list().size());
  if (count == 0) throw std::runtime_error("the driver offers no GPU");
  return device::Device::open(rank % count);
}

template <typename Id>
Id id_of(const std::string& bytes) {
  Id id;
  if (bytes.size() != sizeof(Id)) throw std::runtime_error("that is no id of the engine's");
  std::memcpy(static_cast<void*>(&id), bytes.data(), bytes.size());
  return id;
}

template <typename Id>
std::string bytes_of(const Id& id) {
  return {reinterpret_cast<const char*>(&id), sizeof(Id)};
}

std::unique_ptr<Communicator> make_ranks(const std::string& engine, const std::string& id, int rank,
                                         int size, const std::shared_ptr<device::Device>& device,
                                         std::chrono::milliseconds deadline) {
  if (engine == "nvshmem") {
    return make_nvshmem(nvshmem().functions, id_of<NvshmemId>(id), rank, size,
                        make_rank_device(device), {.common = {deadline}});
  }
  return make_nccl(nccl().functions, id_of<NcclId>(id), rank, size, make_rank_device(device),
                   {.common = {deadline}});
}

std::string make_id(const std::string& engine) {
  return engine == "nvshmem" ? bytes_of(make_nvshmem_id(nvshmem().functions))
                             : bytes_of(make_nccl_id(nccl().functions));
}

}  // namespace

std::string why_no_ranks(const std::string& engine, int size) {
  // Before NCCL is loaded, by one thread.
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);  // NOLINT(concurrency-mt-unsafe)
  const auto gpus = static_cast<int>(device::Device::list().size());
  if (gpus == 0) return "the driver offers no GPU";
  // Whether ranks that share a GPU have MPS, NVSHMEM says when it starts.
  if (engine == "nvshmem") return nvshmem().support.reason;
  if (!nccl().support) return nccl().support.reason;
  if (const int version = nccl().functions.version; gpus < size && version < kFirstToShareGpus) {
    return fmt::format("{} ranks on {} GPU need NCCL {} or newer, {} is {}", size, gpus,
                       nccl_version_text(kFirstToShareGpus), nccl().functions.path,
                       nccl_version_text(version));
  }
  return "";
}

GpuRank::GpuRank(const std::string& engine, const LaunchPlace& place, Milliseconds deadline,
                 Milliseconds silence)
    : engine_(engine), deadline_(deadline), device_([&] {
        const std::string why = why_no_ranks(engine, place.size);
        if (!why.empty()) throw std::runtime_error(why);
        return open_gpu(place.rank);
      }()) {
  stream_ = std::make_unique<device::Stream>(device_);
  store_ =
      Store::join(place, {.deadline = deadline,
                          .silence = silence,
                          .on_lost = [this](int, const std::string& reason) { lose(reason); }});
  auto made = connect();
  const std::lock_guard lock(mutex_);
  communicator_ = std::move(made);
  if (!lost_.empty()) communicator_->abort(lost_);
}

GpuRank::~GpuRank() = default;

std::unique_ptr<Communicator> GpuRank::connect() {
  if (engine_ == "nccl_peers") {
    auto made = connect_nccl(*store_, make_rank_device(device_), {.deadline = deadline_});
    if (made->engine().find("peer memory") == std::string::npos) {
      throw std::runtime_error("no peer memory: " + made->engine());
    }
    return made;
  }
  if (store_->rank() == 0) store_->set("id", make_id(engine_));
  return make_ranks(engine_, store_->get(0, "id"), store_->rank(), store_->size(), device_,
                    deadline_);
}

void GpuRank::lose(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (lost_.empty()) lost_ = reason;
  if (communicator_) communicator_->abort(reason);
}

std::unique_ptr<Communicator> GpuRank::take_staged() {
  const std::lock_guard lock(mutex_);
  return make_staged(std::move(communicator_), device_);
}

std::unique_ptr<Communicator> GpuRank::make_alone() const {
  return make_staged(make_ranks(engine_, make_id(engine_), 0, 1, device_, deadline_), device_);
}

}  // namespace tenon::distributed
