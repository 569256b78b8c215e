#include "tests/kernels/running/allocation_count.h"

#include <cstdlib>
#include <new>

namespace tenon::test {
namespace {
thread_local bool counting = false;
thread_local long count = 0;
thread_local size_t total_bytes = 0;
}  // namespace

static void note_allocation(size_t bytes) {
  if (!counting) return;
  ++count;
  total_bytes += bytes;
}

long count_allocations(const std::function<void()>& work) {
  count = 0;
  counting = true;
  work();
  counting = false;
  return count;
}

size_t count_allocated_bytes(const std::function<void()>& work) {
  total_bytes = 0;
  count_allocations(work);
  return total_bytes;
}

}  // namespace tenon::test

void* operator new(size_t bytes) {
  tenon::test::note_allocation(bytes);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  tenon::test::note_allocation(bytes);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
