#include "distributed/peer_sum.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "base/error.h"
#include "distributed/peer_sum_kernel.h"
#include "kernels/device/stream.h"

namespace tenon::distributed {
namespace {

using device::Address;

// Every rank sends all to all others: with many of them, or much to send, rings are faster.
constexpr auto kMostBytes = static_cast<int64_t>(kernels::kMostDirectBytes);
constexpr int kMostCtas =
    static_cast<int>(kMostBytes / 2 / PeerSumKernel::kBytesPerCta);  // with two ranks
constexpr int64_t kAlignment = 16;

int ctas_of(int64_t bytes) {
  return static_cast<int>((bytes + PeerSumKernel::kBytesPerCta - 1) / PeerSumKernel::kBytesPerCta);
}

bool is_aligned(const void* memory) { return reinterpret_cast<Address>(memory) % kAlignment == 0; }

}  // namespace

PeerSum::Answer PeerSum::connect(Store& store, std::shared_ptr<device::Device> device,
                                 bool shares_gpu, std::chrono::milliseconds deadline) {
  const int ranks = store.size();
  if (ranks > kMostRanks) {
    return {nullptr, fmt::format("{} ranks are more than {}", ranks, kMostRanks)};
  }
  auto shared = PeerMemory::share(store, std::move(device),
                                  PeerSumKernel::memory_bytes(ranks, kMostCtas), deadline);
  if (shared.memory == nullptr) return {nullptr, shared.reason};
  std::unique_ptr<PeerSum> sum;
  std::string reason;
  try {
    sum.reset(new PeerSum(std::move(shared.memory), shares_gpu));
  } catch (const UserError& error) {
    reason = error.what();
  }
  const auto reasons = store.all_gather("sums in peer memory", reason, deadline);
  for (int rank = 0; rank < ranks; ++rank) {
    if (!reasons[rank].empty()) return {nullptr, fmt::format("rank {}: {}", rank, reasons[rank])};
  }
  return {std::move(sum), ""};
}

PeerSum::PeerSum(std::unique_ptr<PeerMemory> memory, bool shares_gpu)
    : memory_(std::move(memory)),
      launches_dependents_(!shares_gpu && memory_->device()->description().compute_major >= 9) {
  const auto& device = memory_->device();
  const int major = device->description().compute_major;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    const PeerSumKernel kernel{dtype, memory_->rank(), memory_->ranks(), major,
                               launches_dependents_};
    kernels_[dtype] = device->load(kernel.code());
  }
  const size_t counters = kMostCtas * sizeof(uint32_t);
  counters_ = device::Buffer(device, counters, "counters of sums between ranks");
  aligned_in_ = device::Buffer(device, kMostBytes / 2, "sums between ranks");
  aligned_out_ = device::Buffer(device, kMostBytes / 2, "sums between ranks");
  device::Stream stream(device);
  stream.fill(counters_.address(), 0, counters);
  stream.synchronize();
  stop_ = static_cast<uint32_t*>(
      device->allocate_pinned(sizeof(uint32_t), "a word that ends sums between ranks"));
  *stop_ = 0;
}

PeerSum::~PeerSum() {
  try {
    memory_->device()->synchronize();  // nobody reads the word any more
  } catch (const std::exception&) {
    return;  // who cannot be asked may still read it
  }
  memory_->device()->release_pinned(stop_);
}

bool PeerSum::takes(int64_t count, DType dtype, Reduction reduction) const {
  if (reduction != Reduction::kSum || !kernels_.contains(dtype)) return false;
  const auto bytes = static_cast<int64_t>(storage_bytes(dtype, count));
  return bytes % kAlignment == 0 && bytes * memory_->ranks() <= kMostBytes;
}

void PeerSum::put(const void* in, void* out, int64_t count, DType dtype,
                  device::StreamHandle handle) {
  const auto bytes = static_cast<int64_t>(storage_bytes(dtype, count));
  device::Stream stream(memory_->device(), handle);
  const Address from = is_aligned(in) ? reinterpret_cast<Address>(in) : aligned_in_.address();
  const Address to = is_aligned(out) ? reinterpret_cast<Address>(out) : aligned_out_.address();
  if (!is_aligned(in)) stream.copy(from, reinterpret_cast<Address>(in), bytes);
  std::array<uint64_t, 5 + kMostRanks> arguments{
      from, to, static_cast<uint64_t>(bytes / kAlignment), counters_.address(),
      reinterpret_cast<uint64_t>(stop_)};
  for (int rank = 0; rank < memory_->ranks(); ++rank) arguments[5 + rank] = memory_->of(rank);
  stream.launch(kernel(dtype), ctas_of(bytes),
                std::span(arguments).first(5 + static_cast<size_t>(memory_->ranks())));
  if (!is_aligned(out)) stream.copy(reinterpret_cast<Address>(out), to, bytes);
}

void PeerSum::abort() noexcept { std::atomic_ref(*stop_).store(1, std::memory_order_release); }

}  // namespace tenon::distributed
