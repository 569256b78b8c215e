#include "base/guard_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string_view>

namespace tenon {
namespace {

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

bool guards_pages() {
  static const bool asked = [] {
    const char* value = std::getenv("TENON_GUARD_PAGES");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return asked;
}

std::shared_ptr<std::byte[]> guarded_bytes(size_t bytes, size_t alignment) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t held = round_up(bytes, alignment), usable = round_up(held, page);
  void* const mapped =
      mmap(nullptr, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const first = static_cast<std::byte*>(mapped);
  if (mprotect(first + usable, page, PROT_NONE) != 0) {
    munmap(mapped, usable + page);
    throw std::bad_alloc();
  }
  return {first + (usable - held), [=](std::byte*) { munmap(mapped, usable + page); }};
}

}  // namespace tenon
