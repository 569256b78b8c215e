#include "plugin_allocations.h"

#include <link.h>

#include <cstdint>
#include <string_view>

#include "harness.h"

namespace tenon::testing {
namespace {

// Where the plugin's code is. It has an operator new of its own, which calls malloc.
struct Range {
  uintptr_t begin = 0, end = 0;
};
thread_local Range counted;  // empty: nothing is
thread_local long count = 0;

Range plugin_code() {
  Range found;
  const auto look = [](dl_phdr_info* library, size_t, void* to) {
    if (std::string_view(library->dlpi_name) != plugin_path()) return 0;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
      const auto& segment = library->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
      const uintptr_t begin = library->dlpi_addr + segment.p_vaddr;
      *static_cast<Range*>(to) = {begin, begin + segment.p_memsz};
    }
    return 1;
  };
  dl_iterate_phdr(look, &found);
  return found;
}

}  // namespace

[[maybe_unused]] static void note_allocation(const void* caller) {
  const auto address = reinterpret_cast<uintptr_t>(caller);
  if (address >= counted.begin && address < counted.end) ++count;
}

long count_plugin_allocations(const std::function<void()>& work) {
  if (kSanitizer) {
    work();
    return -1;
  }
  counted = plugin_code();
  count = 0;
  work();
  counted = {};
  return count;
}

}  // namespace tenon::testing

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {
void* libc_malloc(size_t bytes) asm("__libc_malloc");
[[gnu::visibility("default")]] void* malloc(size_t bytes) {
  tenon::testing::note_allocation(__builtin_return_address(0));
  return libc_malloc(bytes);
}
}
#endif
