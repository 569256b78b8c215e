// What was made of some content, by its hash: made once however many threads ask, kept within
// bounds, the least recently used going first. Values that go stay alive where someone holds them.
#pragma once

#include <condition_variable>
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

  ContentCache(size_t most_entries, size_t most_bytes)
      : most_entries_(most_entries), most_bytes_(most_bytes) {}

  // The value of `key`; `make()` gives it and its bytes where nobody has made it. Threads that want
  // the same one wait for each other, others do not. Where making throws, the next one tries again.
  template <typename Make>
  Pointer get(const Digest& key, const Make& make) {
    const auto make_it = [&](const std::vector<size_t>&) {
      return std::vector<std::pair<Pointer, size_t>>{make()};
    };
    return get_all({&key, 1}, make_it)[0];
  }

  // The values of all keys. `make(missing)` makes those that nobody has made or makes now, in one
  // go: `missing` has a place of each in `keys`, and as many pairs come back. Who wants what others
  // make waits only when it has made its own.
  template <typename Make>
  std::vector<Pointer> get_all(std::span<const Digest> keys, const Make& make) {
    std::map<Digest, size_t> places;
    for (size_t i = 0; i < keys.size(); ++i) places.try_emplace(keys[i], i);
    std::unique_lock lock(mutex_);
    std::map<Digest, std::shared_ptr<Entry>> entries;
    for (const auto& [key, place] : places) entries[key] = find(key);
    while (true) {
      std::vector<size_t> missing;
      bool others_make = false;
      for (const auto& [key, place] : places) {
        const Entry& entry = *entries.at(key);
        if (entry.value != nullptr) continue;
        if (entry.is_being_made) {
          others_make = true;
        } else {
          missing.push_back(place);
        }
      }
      if (!missing.empty()) {
        std::vector<std::shared_ptr<Entry>> claimed;
        for (const size_t place : missing) claimed.push_back(entries.at(keys[place]));
        fill(claimed, lock, [&] { return make(missing); });
      } else if (others_make) {
        made_.wait(lock);
      } else {
        break;
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
    Pointer value;
    size_t bytes = 0;
    bool is_being_made = false;
    bool is_listed = true;  // false: gone while someone made it
  };
  using Recent = std::list<std::pair<Digest, std::shared_ptr<Entry>>>;

  // Makes the values without the lock, which is held before and after, also where making throws.
  template <typename Make>
  void fill(const std::vector<std::shared_ptr<Entry>>& claimed, std::unique_lock<std::mutex>& lock,
            const Make& make) {
    const auto mark = [&](bool is_being_made) {
      for (const auto& entry : claimed) entry->is_being_made = is_being_made;
    };
    mark(true);
    lock.unlock();
    std::vector<std::pair<Pointer, size_t>> made;
    try {
      made = make();
    } catch (...) {
      lock.lock();
      mark(false);
      made_.notify_all();
      throw;
    }
    lock.lock();
    mark(false);
    for (size_t i = 0; i < claimed.size(); ++i) {
      claimed[i]->value = std::move(made[i].first);
      keep(*claimed[i], made[i].second);
    }
    made_.notify_all();
  }

  std::shared_ptr<Entry> find(const Digest& key) {
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
  mutable std::mutex mutex_;  // of all that follows, entries included
  std::condition_variable made_;
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
