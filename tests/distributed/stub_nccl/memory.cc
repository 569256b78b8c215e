#include "tests/distributed/stub_nccl/memory.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>

namespace stub_nccl {
namespace {

constexpr uintptr_t kAlignment = 4096;

// A function of the driver that plays the GPU; null: nothing does.
template <typename Function>
Function driver(const char* symbol) {
  const char* path = std::getenv("TENON_DRIVER_LIBRARY");
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, symbol));
}

}  // namespace

Memory allocate(size_t bytes) {
  const size_t enough = bytes + kAlignment;
  uintptr_t whole = 0;
  if (const auto on_device = driver<int (*)(uintptr_t*, size_t)>("cuMemAlloc_v2")) {
    if (on_device(&whole, enough) != 0) return {};
  } else {
    whole = reinterpret_cast<uintptr_t>(std::malloc(enough));
  }
  const uintptr_t begin = (whole + kAlignment - 1) / kAlignment * kAlignment;
  return {reinterpret_cast<void*>(begin), reinterpret_cast<void*>(whole)};
}

void free_memory(const Memory& memory) {
  if (const auto on_device = driver<int (*)(uintptr_t)>("cuMemFree_v2")) {
    on_device(reinterpret_cast<uintptr_t>(memory.whole));
  } else {
    std::free(memory.whole);
  }
}

}  // namespace stub_nccl
