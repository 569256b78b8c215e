#include "kernels/lowered.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/error.h"

namespace tenon::kernels {

std::shared_ptr<std::byte[]> aligned_bytes(size_t bytes) {
  constexpr size_t kCacheLine = 64, kHugePage = size_t{2} << 20;
  // Weights are read from end to end: with small pages every 4 KiB waits for an address.
  const bool large = bytes >= kHugePage;
  void* data = nullptr;
  if (posix_memalign(&data, large ? kHugePage : kCacheLine, std::max(bytes, kCacheLine)) != 0) {
    throw std::bad_alloc();
  }
  if (large) madvise(data, bytes, MADV_HUGEPAGE);  // advice: no matter if it is not taken
  return {static_cast<std::byte*>(data), [](std::byte* owned) { std::free(owned); }};
}

}  // namespace tenon::kernels
