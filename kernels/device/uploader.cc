#include "kernels/device/uploader.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>

#include "base/thread_pool.h"

namespace tenon::device {
namespace {

// As many threads pack as there are buffers, and most weights are some ten megabytes.
constexpr size_t kBuffers = 16, kBufferBytes = 1 << 20;

class PinnedRing final : public Uploader {
 public:
  explicit PinnedRing(std::shared_ptr<Device> device) : stream_(device) {
    for (Slot& slot : slots_) {
      try {
        void* memory = device->allocate_pinned(kBufferBytes, "the upload of weights");
        slot.memory = {memory, ReleasePinned{device}};
      } catch (const OutOfMemory&) {
        break;  // fewer buffers will do, and without any the driver stages
      }
      slot.copied.emplace(device);
      ++usable_;
    }
  }

  ~PinnedRing() override {
    if (!copying_) return;
    try {
      stream_.synchronize();  // the last copies may still read the buffers
    } catch (const std::exception&) {
      // The device is lost, and nothing reads them any more.
    }
  }

  using Uploader::upload;
  void upload(Address to, size_t bytes, const MakePiece& make, size_t unit) override {
    const size_t piece = std::max<size_t>(1, kBufferBytes / unit) * unit;
    const bool pinned = usable_ > 0 && piece <= kBufferBytes;
    const auto send = [&](int64_t i) {
      const size_t first = static_cast<size_t>(i) * piece;
      const Piece part{to + first, static_cast<int64_t>(first), std::min(piece, bytes - first)};
      pinned ? send_pinned(part, make) : send_staged(part, make);
    };
    parallel_for_each(static_cast<int64_t>((bytes + piece - 1) / piece), send,
                      pinned ? static_cast<int>(usable_) : 1);
  }

  void finish() override {
    const std::lock_guard lock(mutex_);
    stream_.synchronize();
    copying_ = false;
  }

 private:
  struct ReleasePinned {
    std::shared_ptr<Device> device;
    void operator()(void* memory) const noexcept { device->release_pinned(memory); }
  };
  struct Slot {
    std::unique_ptr<void, ReleasePinned> memory;
    std::optional<Event> copied;
    bool used = false;  // `copied` was recorded
    bool taken = false;
  };
  struct Piece {
    Address to = 0;
    int64_t first = 0;
    size_t bytes = 0;
  };

  // A slot for one thread, given back at the end of its scope.
  class Taken {
   public:
    explicit Taken(PinnedRing& ring) : ring_(ring) {
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
    PinnedRing& ring_;
    Slot* slot_ = nullptr;
  };

  Slot* oldest_free() {
    for (size_t i = 0; i < usable_; ++i) {
      Slot& slot = slots_[(turn_ + i) % usable_];
      if (slot.taken) continue;
      turn_ += i + 1;
      return &slot;
    }
    return nullptr;
  }

  void send_pinned(const Piece& piece, const MakePiece& make) {
    Taken slot(*this);
    if (slot->used) slot->copied->synchronize();
    make(piece.first, {static_cast<std::byte*>(slot->memory.get()), piece.bytes});
    const std::lock_guard lock(mutex_);
    copying_ = true;
    stream_.copy(piece.to, reinterpret_cast<Address>(slot->memory.get()), piece.bytes);
    stream_.record(*slot->copied);
    slot->used = true;
  }

  void send_staged(const Piece& piece, const MakePiece& make) {
    const auto bytes = std::make_unique_for_overwrite<std::byte[]>(piece.bytes);
    make(piece.first, {bytes.get(), piece.bytes});
    const std::lock_guard lock(mutex_);
    stream_.copy(piece.to, reinterpret_cast<Address>(bytes.get()), piece.bytes);
    stream_.synchronize();
  }

  std::mutex mutex_;
  std::condition_variable given_back_;
  std::array<Slot, kBuffers> slots_;
  Stream stream_;
  size_t usable_ = 0, turn_ = 0;
  bool copying_ = false;  // since the last finish()
};

}  // namespace

void Uploader::upload(Address to, const void* from, size_t bytes) {
  const auto* source = static_cast<const std::byte*>(from);
  upload(to, bytes, [source](int64_t first, std::span<std::byte> out) {
    std::memcpy(out.data(), source + first, out.size());
  });
}

std::unique_ptr<Uploader> Uploader::make(std::shared_ptr<Device> device) {
  return std::make_unique<PinnedRing>(std::move(device));
}

}  // namespace tenon::device
