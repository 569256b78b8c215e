#include "base/file_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace tenon {
namespace {

// Bits of an entry of /proc/self/pagemap, which has one for every page of this process.
constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62;
constexpr uint64_t kOfFile = uint64_t{1} << 61;

// A private page that was written to is no longer the file's.
bool may_go(uint64_t entry) {
  if ((entry & kSwapped) != 0) return false;
  return (entry & kPresent) == 0 || (entry & kOfFile) != 0;
}

class PageMap {
 public:
  PageMap() : file_(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}
  ~PageMap() {
    if (file_ >= 0) close(file_);
  }
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  bool all_may_go(uintptr_t first_page, size_t count) const {
    if (file_ < 0) return false;
    std::array<uint64_t, 512> entries;
    for (size_t done = 0; done < count;) {
      const size_t some = std::min(entries.size(), count - done);
      const size_t bytes = some * sizeof(uint64_t);
      const auto offset = static_cast<off_t>((first_page + done) * sizeof(uint64_t));
      if (pread(file_, entries.data(), bytes, offset) != static_cast<ssize_t>(bytes)) return false;
      if (!std::all_of(entries.begin(), entries.begin() + some, may_go)) return false;
      done += some;
    }
    return true;
  }

 private:
  int file_;
};

}  // namespace

void release_file_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = (begin + page - 1) / page, last = (begin + bytes.size()) / page;
  if (first >= last) return;
  if (!PageMap().all_may_go(first, last - first)) return;
  madvise(reinterpret_cast<void*>(first * page), (last - first) * page, MADV_DONTNEED);
}

}  // namespace tenon
