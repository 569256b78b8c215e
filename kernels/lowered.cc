#include "kernels/lowered.h"

#include <cstdlib>
#include <new>

#include "base/error.h"

namespace tenon::kernels {

std::shared_ptr<std::byte[]> aligned_bytes(size_t bytes) {
  constexpr size_t kAlignment = 64;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
  if (data == nullptr) throw std::bad_alloc();
  return {static_cast<std::byte*>(data), [](std::byte* owned) { std::free(owned); }};
}

}  // namespace tenon::kernels
