#include "kernels/planning/lowered.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/error.h"
#include "base/guard_pages.h"
#include "base/thread_pool.h"

namespace tenon::kernels {

std::string_view name(LaunchKind kind) {
  switch (kind) {
    case LaunchKind::kKernel:
      return "kernel";
    case LaunchKind::kLibraryCall:
      return "library call";
    case LaunchKind::kCopy:
      return "copy";
    case LaunchKind::kCollective:
      return "collective";
  }
  throw InternalError("a launch of no kind");
}

Launch Launch::copy(BufferArgument from, BufferArgument to, Dim bytes) {
  Launch launch;
  launch.buffers = {from, to};
  launch.writes = {false, true};
  launch.copy_bytes = std::move(bytes);
  launch.tasks = 1;
  return launch;
}

Launch Launch::library(std::shared_ptr<const LibraryCall> call, std::vector<BufferArgument> buffers,
                       std::vector<bool> writes) {
  Launch launch;
  launch.call = std::move(call);
  launch.buffers = std::move(buffers);
  launch.writes = std::move(writes);
  launch.tasks = 1;
  return launch;
}

std::shared_ptr<std::byte[]> aligned_bytes(size_t bytes) {
  constexpr size_t kCacheLine = 64, kHugePage = size_t{2} << 20;
  if (guards_pages()) return guarded_bytes(bytes, kCacheLine);
  // Weights are read from end to end: with small pages every 4 KiB waits for an address.
  const bool large = bytes >= kHugePage;
  void* data = nullptr;
  if (posix_memalign(&data, large ? kHugePage : kCacheLine, std::max(bytes, kCacheLine)) != 0) {
    throw std::bad_alloc();
  }
  if (large) madvise(data, bytes, MADV_HUGEPAGE);  // advice: no matter if it is not taken
  return {static_cast<std::byte*>(data), [](std::byte* owned) { std::free(owned); }};
}

std::shared_ptr<std::byte[]> pack_whole(size_t bytes, const PackPiece& pack, size_t unit) {
  constexpr size_t kPiece = size_t{1} << 20;
  const size_t piece = std::max<size_t>(1, kPiece / unit) * unit;
  auto whole = aligned_bytes(bytes);
  parallel_for_each(static_cast<int64_t>((bytes + piece - 1) / piece), [&](int64_t i) {
    const size_t first = static_cast<size_t>(i) * piece;
    pack(static_cast<int64_t>(first), {whole.get() + first, std::min(piece, bytes - first)});
  });
  return whole;
}

}  // namespace tenon::kernels
