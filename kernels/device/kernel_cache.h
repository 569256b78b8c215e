// Compiled kernels between processes: how those who make them use the folder of a session that has
// one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/disk_cache.h"
#include "base/error.h"
#include "base/hash.h"

namespace tenon::device {

// Everything that decides what our compiler makes of a kernel, but for the kernel and its target.
std::string compiler_build();

// The value of `key` as `read(bytes)` finds it in the cache, else what `make()` gives, which is
// kept there as `write(value)`. `read` throws UserError for what is no such value. Null: no cache.
template <typename Read, typename Write, typename Make>
auto read_or_make(DiskCache* cache, std::string_view kind, const Digest& key, const Read& read,
                  const Write& write, const Make& make) -> decltype(make()) {
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
