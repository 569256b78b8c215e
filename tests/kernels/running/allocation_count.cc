#include "tests/kernels/running/allocation_count.h"

#include <cstdlib>
#include <new>

namespace tenon::test {
namespace {
thread_local bool counting = false;
thread_local long count = 0;
}  // namespace

static void note_allocation() {
  if (counting) ++count;
}

long count_allocations(const std::function<void()>& work) {
  count = 0;
  counting = true;
  work();
  counting = false;
  return count;
}

}  // namespace tenon::test

void* operator new(size_t bytes) {
  tenon::test::note_allocation();
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  tenon::test::note_allocation();
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
