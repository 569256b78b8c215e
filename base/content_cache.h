// What was made of some content, by its hash: made once however many threads ask, kept within
// bounds, the least recently used going first. Values that go stay alive where someone holds them.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace tenon {

template <typename Value>
class ContentCache {
 public:
  using Pointer = std::shared_ptr<const Value>;

  constexpr ContentCache(size_t most_entries, size_t most_bytes)
      : most_entries_(most_entries), most_bytes_(most_bytes) {}

  // The value of `key`; `make()` gives it and its bytes where nobody has made it. Threads that want
  // the same one wait for each other, others do not. Where making throws, the next one tries again.
  template <typename Make>
  Pointer get(const Digest& key, const Make& make) {
    return get_all({&key, 1}, [&](const std::vector<size_t>&) { return std::vector{make()}; })[0];
  }

  // The values of all keys. `make(missing)` makes those that nobody has made, in one go: `missing`
  // has a place of each in `keys`, and as many pairs come back.
  template <typename Make>
  std::vector<Pointer> get_all(std::span<const Digest> keys, const Make& make) {
    std::map<Digest, size_t> places;  // in the order of keys, so that no two wait for each other
    for (size_t i = 0; i < keys.size(); ++i) places.try_emplace(keys[i], i);
    std::map<Digest, std::shared_ptr<Entry>> entries;
    std::vector<std::unique_lock<std::mutex>> making;
    std::vector<size_t> missing;
    for (const auto& [key, place] : places) {
      const std::shared_ptr<Entry>& entry = entries[key] = find(key);
      making.emplace_back(entry->mutex);
      if (entry->value == nullptr) missing.push_back(place);
    }
    if (!missing.empty()) {
      std::vector<std::pair<Pointer, size_t>> made = make(missing);
      for (size_t i = 0; i < missing.size(); ++i) {
        Entry& entry = *entries.at(keys[missing[i]]);
        entry.value = std::move(made[i].first);
        keep(entry, made[i].second);
      }
    }
    std::vector<Pointer> values;
    for (const Digest& key : keys) values.push_back(entries.at(key)->value);
    return values;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : recent_) entry->is_listed = false;
    places_.clear();
    recent_.clear();
    bytes_ = 0;
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return recent_.size();
  }
  size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Entry {
    std::mutex mutex;  // held while the value is made; taken before the cache's
    Pointer value;
    size_t bytes = 0;       // the cache's mutex guards these two
    bool is_listed = true;  // false: gone while someone made it
  };
  using Recent = std::list<std::pair<Digest, std::shared_ptr<Entry>>>;

  std::shared_ptr<Entry> find(const Digest& key) {
    const std::lock_guard lock(mutex_);
    if (const auto known = places_.find(key); known != places_.end()) {
      recent_.splice(recent_.begin(), recent_, known->second);
      return recent_.front().second;
    }
    recent_.emplace_front(key, std::make_shared<Entry>());
    places_[key] = recent_.begin();
    shrink();
    return recent_.front().second;
  }

  void keep(Entry& entry, size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!entry.is_listed) return;
    entry.bytes = bytes;
    bytes_ += bytes;
    shrink();
  }

  // The most recent one stays, however large.
  void shrink() {
    while (recent_.size() > 1 && (recent_.size() > most_entries_ || bytes_ > most_bytes_)) {
      auto& [key, entry] = recent_.back();
      entry->is_listed = false;
      bytes_ -= entry->bytes;
      places_.erase(key);
      recent_.pop_back();
    }
  }

  const size_t most_entries_, most_bytes_;
  mutable std::mutex mutex_;
  Recent recent_;  // most recent first
  std::map<Digest, typename Recent::iterator> places_;
  size_t bytes_ = 0;
};

// The process's one cache of a kind of value. Destroyed by nobody, for libraries that values lean
// on may be gone by then; who unloads this code clears it before, and nothing is left.
template <typename Value>
ContentCache<Value>& process_cache() {
  constexpr size_t kMostEntries = 512, kMostBytes = size_t{256} << 20;
  alignas(ContentCache<Value>) static std::byte place[sizeof(ContentCache<Value>)];
  static auto* const cache = new (place) ContentCache<Value>(kMostEntries, kMostBytes);
  return *cache;
}

}  // namespace tenon
