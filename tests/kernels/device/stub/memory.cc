#include "tests/kernels/device/stub/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace tenon::stub {
namespace {

constexpr size_t kMostReserved = size_t{1} << 40, kLeastReserved = size_t{1} << 34;
constexpr size_t kFilled = 32 << 20;
constexpr int kFresh = 0xff, kGuard = 0xa5;

size_t page() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t whole_pages(size_t bytes) { return (bytes + page() - 1) / page() * page(); }

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

}  // namespace

void AddressSpace::reserve() {
  // Sanitizers and limits leave less room.
  for (size_t bytes = kMostReserved; bytes >= kLeastReserved; bytes /= 2) {
    void* space =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) continue;
    begin_ = next_ = reinterpret_cast<Address>(space);
    end_ = begin_ + bytes;
    return;
  }
}

const Allocation* AddressSpace::allocate(size_t bytes, int device, bool pinned) {
  if (begin_ == 0) reserve();
  const size_t mapped = whole_pages(bytes);
  // One page stays closed behind each allocation.
  if (mapped < bytes || mapped + page() > end_ - next_) return nullptr;
  if (mprotect(pointer(next_), mapped, PROT_READ | PROT_WRITE) != 0) return nullptr;
  const Allocation allocation{next_, bytes, device, pinned};
  next_ += mapped + page();
  std::memset(pointer(allocation.base), kFresh, std::min(bytes, kFilled));
  std::memset(pointer(allocation.base + bytes), kGuard, mapped - bytes);
  return &live_.emplace(allocation.base, allocation).first->second;
}

bool AddressSpace::release(Address base) {
  const auto entry = live_.find(base);
  if (entry == live_.end()) return false;
  const size_t mapped = whole_pages(entry->second.bytes);
  madvise(pointer(base), mapped, MADV_DONTNEED);
  mprotect(pointer(base), mapped, PROT_NONE);
  freed_.emplace(base, entry->second.bytes);
  live_.erase(entry);
  return true;
}

const Allocation* AddressSpace::find(Address address) const {
  auto entry = live_.upper_bound(address);
  if (entry == live_.begin()) return nullptr;
  --entry;
  return entry->second.holds(address, 0) ? &entry->second : nullptr;
}

bool AddressSpace::contains(Address address) const { return address >= begin_ && address < end_; }

bool AddressSpace::overrun(const Allocation& allocation) const {
  const auto* byte = static_cast<const unsigned char*>(pointer(allocation.base));
  return std::any_of(byte + allocation.bytes, byte + whole_pages(allocation.bytes),
                     [](unsigned char value) { return value != kGuard; });
}

std::string AddressSpace::describe(Address address) const {
  auto entry = freed_.upper_bound(address);
  if (entry != freed_.begin()) {
    --entry;
    if (address - entry->first <= entry->second) {
      return fmt::format("freed memory ({} bytes of a freed allocation of {})",
                         address - entry->first, entry->second);
    }
  }
  return contains(address) ? "memory that was never allocated" : "no memory of the GPU";
}

}  // namespace tenon::stub
