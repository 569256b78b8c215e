#include "kernels/device/uploader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <optional>

namespace tenon::device {
namespace {

constexpr size_t kBuffers = 3, kBufferBytes = 4 << 20;

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

  void upload(Address to, const void* from, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (usable_ == 0) {
      stream_.copy(to, reinterpret_cast<Address>(from), bytes);
      stream_.synchronize();
      return;
    }
    const auto* next = static_cast<const std::byte*>(from);
    while (bytes > 0) {
      Slot& slot = slots_[turn_++ % usable_];
      const size_t part = std::min(bytes, kBufferBytes);
      if (slot.used) slot.copied->synchronize();
      std::memcpy(slot.memory.get(), next, part);
      stream_.copy(to, reinterpret_cast<Address>(slot.memory.get()), part);
      stream_.record(*slot.copied);
      slot.used = copying_ = true;
      to += part;
      next += part;
      bytes -= part;
    }
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
    bool used = false;
  };

  std::mutex mutex_;
  std::array<Slot, kBuffers> slots_;
  Stream stream_;
  size_t usable_ = 0, turn_ = 0;
  bool copying_ = false;  // since the last finish()
};

}  // namespace

std::unique_ptr<Uploader> Uploader::make(std::shared_ptr<Device> device) {
  return std::make_unique<PinnedRing>(std::move(device));
}

}  // namespace tenon::device
