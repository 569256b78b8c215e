// Compiled kernels between processes: the folder of a session that has one, while it is made.
// Compiled kernels are the process's; so is this, and sessions made at the same time share it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/disk_cache.h"
#include "base/error.h"
#include "base/hash.h"

namespace tenon::device {

// While it lives, kernels are looked up and kept there. Null: it does nothing.
class UseKernelCache {
 public:
  explicit UseKernelCache(std::shared_ptr<DiskCache> cache);
  ~UseKernelCache();
  UseKernelCache(const UseKernelCache&) = delete;
  UseKernelCache& operator=(const UseKernelCache&) = delete;

 private:
  std::shared_ptr<DiskCache> cache_;
};

// The one that came into use last and still is; null: none.
std::shared_ptr<DiskCache> kernel_cache();

// Everything that decides what our compiler makes of a kernel, but for the kernel and its target.
std::string compiler_build();

// The value of `key` as `read(bytes)` finds it in the kernel cache, else what `make()` gives, which
// is kept there as `write(value)`. `read` throws UserError for what is no such value.
template <typename Read, typename Write, typename Make>
auto read_or_make(std::string_view kind, const Digest& key, const Read& read, const Write& write,
                  const Make& make) -> decltype(make()) {
  const std::shared_ptr<DiskCache> cache = kernel_cache();
  if (cache == nullptr) return make();
  if (const std::optional<std::string> bytes = cache->get(kind, key)) {
    try {
      return read(*bytes);
    } catch (const UserError& error) {
      cache->refuse(kind, key, error.what());
    }
  }
  auto value = make();
  cache->put(kind, key, write(value));
  return value;
}

}  // namespace tenon::device
