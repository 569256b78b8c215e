#include "kernels/device/kernel_cache.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/build_id.h"
#include "codegen/llvm/version.h"

namespace tenon::device {
namespace {

struct InUse {
  std::mutex mutex;
  std::vector<std::shared_ptr<DiskCache>> caches;
};
InUse& in_use() {
  static InUse caches;
  return caches;
}

}  // namespace

UseKernelCache::UseKernelCache(std::shared_ptr<DiskCache> cache) : cache_(std::move(cache)) {
  if (cache_ == nullptr) return;
  const std::lock_guard lock(in_use().mutex);
  in_use().caches.push_back(cache_);
}

UseKernelCache::~UseKernelCache() {
  if (cache_ == nullptr) return;
  const std::lock_guard lock(in_use().mutex);
  auto& caches = in_use().caches;
  caches.erase(std::ranges::find(caches, cache_));
}

std::shared_ptr<DiskCache> kernel_cache() {
  const std::lock_guard lock(in_use().mutex);
  return in_use().caches.empty() ? nullptr : in_use().caches.back();
}

std::string compiler_build() {
  static const std::string build = fmt::format(
      "{} LLVM {}", build_id(reinterpret_cast<const void*>(&in_use)), codegen::llvm_version());
  return build;
}

}  // namespace tenon::device
