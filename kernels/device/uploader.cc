#include "kernels/device/uploader.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "base/thread_pool.h"

namespace tenon::device {
namespace {

// Twice as many buffers as threads: one is filled while the one before is on its way, or waits for
// a kernel. Most weights are some ten megabytes.
constexpr size_t kBuffers = 32, kThreads = 16, kBufferBytes = 1 << 20;

class BufferRing final : public Uploader {
 public:
  // `pinned`: else the driver copies each piece to memory of its own before it travels.
  BufferRing(const std::shared_ptr<Device>& device, size_t buffers, bool pinned) : stream_(device) {
    for (size_t i = 0; i < buffers && pinned; ++i) {
      try {
        void* memory = device->allocate_pinned(kBufferBytes, "the upload of weights");
        add({memory, Release{device}}, device);
      } catch (const OutOfMemory&) {
        break;  // fewer will do
      }
    }
    while (usable_ < (pinned ? 1 : buffers)) {
      add({::operator new(kBufferBytes), Release{}}, device);
    }
  }

  ~BufferRing() override {
    if (!copying_) return;
    try {
      stream_.synchronize();  // the last copies may still read the buffers
    } catch (const std::exception&) {
      // The device is lost, and nothing reads them any more.
    }
  }

  using Uploader::upload;
  void upload(std::span<const Transfer> transfers) override {
    std::vector<Piece> pieces;
    for (const Transfer& transfer : transfers) cut(transfer, pieces);
    const auto send = [&](int64_t i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      piece.bytes <= kBufferBytes ? send_from_ring(piece) : send_whole(piece);
    };
    const size_t threads = std::min(usable_, kThreads);
    parallel_for_each(static_cast<int64_t>(pieces.size()), send, static_cast<int>(threads));
  }

  void launch(const LoadedKernel& kernel, int64_t tasks,
              std::span<const uint64_t> arguments) override {
    const std::lock_guard lock(mutex_);
    copying_ = true;
    stream_.launch(kernel, tasks, arguments);
  }

  void finish() override {
    const std::lock_guard lock(mutex_);
    stream_.synchronize();
    copying_ = false;
  }

 private:
  struct Release {
    std::shared_ptr<Device> device;  // that pinned it; null: nobody did
    void operator()(void* memory) const noexcept {
      device ? device->release_pinned(memory) : ::operator delete(memory);
    }
  };
  using Memory = std::unique_ptr<void, Release>;
  struct Slot {
    Memory memory;
    std::optional<Event> copied;
    bool used = false;  // `copied` was recorded
    bool taken = false;
  };
  struct Piece {
    Address to = 0;
    int64_t first = 0;
    size_t bytes = 0;
    const MakePiece* make = nullptr;
  };

  // A slot for one thread, given back at the end of its scope.
  class Taken {
   public:
    explicit Taken(BufferRing& ring) : ring_(ring) {
      std::unique_lock lock(ring.mutex_);
      ring.given_back_.wait(lock, [&] { return (slot_ = ring.oldest_free()) != nullptr; });
      slot_->taken = true;
    }
    ~Taken() {
      {
        const std::lock_guard lock(ring_.mutex_);
        slot_->taken = false;
      }
      ring_.given_back_.notify_one();
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;
    Slot* operator->() { return slot_; }

   private:
    BufferRing& ring_;
    Slot* slot_ = nullptr;
  };

  void add(Memory memory, const std::shared_ptr<Device>& device) {
    Slot& slot = slots_[usable_];
    slot.memory = std::move(memory);
    slot.copied.emplace(device);
    ++usable_;
  }

  static void cut(const Transfer& transfer, std::vector<Piece>& pieces) {
    const size_t most = std::max<size_t>(1, kBufferBytes / transfer.unit) * transfer.unit;
    for (size_t first = 0; first < transfer.bytes; first += most) {
      pieces.push_back({transfer.to + first, static_cast<int64_t>(first),
                        std::min(most, transfer.bytes - first), &transfer.make});
    }
  }

  Slot* oldest_free() {
    for (size_t i = 0; i < usable_; ++i) {
      Slot& slot = slots_[(turn_ + i) % usable_];
      if (slot.taken) continue;
      turn_ += i + 1;
      return &slot;
    }
    return nullptr;
  }

  void send_from_ring(const Piece& piece) {
    Taken slot(*this);
    if (slot->used) slot->copied->synchronize();
    (*piece.make)(piece.first, {static_cast<std::byte*>(slot->memory.get()), piece.bytes});
    const std::lock_guard lock(mutex_);
    copying_ = true;
    stream_.copy(piece.to, reinterpret_cast<Address>(slot->memory.get()), piece.bytes);
    stream_.record(*slot->copied);
    slot->used = true;
  }

  // A unit that no buffer holds.
  void send_whole(const Piece& piece) {
    const auto bytes = std::make_unique_for_overwrite<std::byte[]>(piece.bytes);
    (*piece.make)(piece.first, {bytes.get(), piece.bytes});
    const std::lock_guard lock(mutex_);
    stream_.copy(piece.to, reinterpret_cast<Address>(bytes.get()), piece.bytes);
    stream_.synchronize();
  }

  std::mutex mutex_;
  std::condition_variable given_back_;
  std::array<Slot, kBuffers> slots_;
  Stream stream_;
  size_t usable_ = 0, turn_ = 0;
  bool copying_ = false;  // or launching, since the last finish()
};

}  // namespace

void Uploader::upload(Address to, size_t bytes, const MakePiece& make, size_t unit) {
  const Transfer transfer{to, bytes, make, unit};
  upload({&transfer, 1});
}

void Uploader::upload(Address to, const void* from, size_t bytes) {
  const auto* source = static_cast<const std::byte*>(from);
  upload(to, bytes, [source](int64_t first, std::span<std::byte> out) {
    std::memcpy(out.data(), source + first, out.size());
  });
}

std::unique_ptr<Uploader> Uploader::make(std::shared_ptr<Device> device, size_t bytes) {
  // Pinning a megabyte takes 0.4 ms and letting go of it 0.1; from memory that is not pinned a
  // megabyte travels in 0.14 ms, else in 0.04 (H200). Every buffer pinned has to be used five
  // times.
  constexpr size_t kWorthPinning = size_t{64} << 20, kUsesOfABuffer = 5;
  const bool pinned = bytes >= kWorthPinning;
  const size_t wanted = bytes / kBufferBytes / (pinned ? kUsesOfABuffer : 1);
  return std::make_unique<BufferRing>(
      device, std::clamp<size_t>(wanted, 1, pinned ? kBuffers : kThreads), pinned);
}

}  // namespace tenon::device
