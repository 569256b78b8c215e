#include "provider/allocator.h"

#include <utility>

#include "base/error.h"
#include "provider/api.h"
#include "provider/guard.h"
#include "provider/key_values.h"
#include "provider/stream.h"

namespace tenon::provider {
namespace {

Allocator& self(OrtAllocator* allocator) { return *static_cast<Allocator*>(allocator); }

std::string& last_failure() {
  thread_local std::string message;
  return message;
}

// What `get` returns, or null with the reason kept.
template <typename Get>
void* or_null(size_t bytes, Get&& get) noexcept {
  if (bytes == 0) return nullptr;
  try {
    return get();
  } catch (const std::exception& error) {
    last_failure() = error.what();
  }
  return nullptr;
}

device::StreamHandle handle_of(OrtSyncStream* stream) {
  if (stream == nullptr) return nullptr;
  return static_cast<device::StreamHandle>(runtime().api->SyncStream_GetHandle(stream));
}

device::MemoryKind kind_of(const OrtMemoryInfo& info) {
  return runtime().api->MemoryInfoGetDeviceMemType(&info) == OrtDeviceMemoryType_HOST_ACCESSIBLE
             ? device::MemoryKind::kPinned
             : device::MemoryKind::kDevice;
}

bool is_read_only(const OrtMemoryInfo& info) {
  OrtAllocatorType type{};
  check(runtime().api->MemoryInfoGetType(&info, &type));
  return type == OrtReadOnlyAllocator;
}

}  // namespace

std::string allocation_failure() {
  std::string message = std::exchange(last_failure(), "");
  return message.empty() ? "the runtime brought no memory for it" : message;
}

Allocator::Allocator(Gpu& gpu, const OrtMemoryInfo& info, size_t limit)
    : OrtAllocator{},
      gpu_(gpu),
      info_(info),
      limit_(limit),
      kind_(kind_of(info)),
      weights_(is_read_only(info)) {
  version = runtime().version;
  Alloc = [](OrtAllocator* allocator, size_t bytes) -> void* {
    return or_null(bytes, [&] { return self(allocator).allocate(bytes, nullptr); });
  };
  AllocOnStream = [](OrtAllocator* allocator, size_t bytes, OrtSyncStream* stream) -> void* {
    return or_null(bytes, [&] { return self(allocator).allocate(bytes, handle_of(stream)); });
  };
  Reserve = [](OrtAllocator* allocator, size_t bytes) -> void* {
    return or_null(bytes, [&] { return self(allocator).reserve(bytes); });
  };
  Free = [](OrtAllocator* allocator, void* memory) { self(allocator).release(memory); };
  Info = [](const OrtAllocator* allocator) -> const OrtMemoryInfo* {
    return &static_cast<const Allocator*>(allocator)->info_;
  };
  GetStats = [](const OrtAllocator* allocator, OrtKeyValuePairs** out) noexcept {
    return guarded([&] { *out = static_cast<const Allocator*>(allocator)->stats(); });
  };
  Shrink = [](OrtAllocator* allocator) noexcept {
    return guarded([&] { self(allocator).shrink(); });
  };
}

Allocator::~Allocator() {
  if (arena_) gpu_.remove(*arena_);
}

device::Device& Allocator::device() {
  if (!device_) device_ = device::Device::open(gpu_.description.ordinal);
  return *device_;
}

device::Arena& Allocator::arena() {
  const std::lock_guard lock(mutex_);
  if (!arena_) {
    device();
    arena_ = device::Arena::make(device_, kind_, limit_);
    gpu_.add(*arena_);
  }
  return *arena_;
}

void* Allocator::allocate(size_t bytes, device::StreamHandle stream) {
  if (weights_) return reserve(bytes);
  if (stream == nullptr || gpu_.has(stream)) return arena().allocate(bytes, stream);
  note_stream(stream);  // so that the end of the Run lets go of it
  return arena().allocate(bytes, stream, device::StreamEnd::kForeign);
}

void* Allocator::reserve(size_t bytes) {
  const std::lock_guard lock(mutex_);
  constexpr const char* kPurpose = "a tensor that stays with the session";
  void* memory = kind_ == device::MemoryKind::kPinned
                     ? device().allocate_pinned(bytes, kPurpose)
                     : reinterpret_cast<void*>(device().allocate(bytes, kPurpose));
  reserved_.insert(memory);
  gpu_.add_lasting(memory, bytes);
  ++reserves_;
  return memory;
}

void Allocator::release(void* memory) noexcept {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (reserved_.erase(memory) == 0) return arena_->release(memory);
  gpu_.remove_lasting(memory);
  if (kind_ == device::MemoryKind::kPinned) return device_->release_pinned(memory);
  device_->release(reinterpret_cast<device::Address>(memory));
}

OrtKeyValuePairs* Allocator::stats() const {
  const std::lock_guard lock(mutex_);
  const device::ArenaStats stats = arena_ ? arena_->stats() : device::ArenaStats{};
  const int64_t limit = limit_ == 0 ? -1 : static_cast<int64_t>(limit_);
  return key_values({
                        {"Limit", std::to_string(limit)},
                        {"InUse", std::to_string(stats.in_use)},
                        {"TotalAllocated", std::to_string(stats.reserved)},
                        {"MaxInUse", std::to_string(stats.peak_in_use)},
                        {"NumAllocs", std::to_string(stats.allocations)},
                        {"NumReserves", std::to_string(reserves_.load())},
                        {"NumArenaExtensions", std::to_string(stats.block_allocations)},
                    })
      .release();
}

void Allocator::shrink() {
  const std::lock_guard lock(mutex_);
  if (arena_) arena_->shrink();
}

}  // namespace tenon::provider
