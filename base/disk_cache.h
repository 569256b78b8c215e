// What was made of some content, kept in a folder between processes. Each entry is one file that
// checks itself; the least recently used ones go when there are too many bytes. Any number of
// processes may use a folder at once. Nothing here throws or fails: what cannot be read was not
// there, what cannot be written is not, and problems() tells why.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/support.h"

namespace tenon {

class Descriptor;

class DiskCache {
 public:
  struct Counts {
    int64_t hits = 0, misses = 0;
  };

  // The folder is made for its owner alone. One that is a symlink, another user's, or that others
  // may write to is not used.
  DiskCache(const std::string& folder, uint64_t limit_bytes);

  const std::string& folder() const { return folder_; }

  // The bytes that put() was given for this key; `kind` tells sorts of entries apart, for counts
  // and for who looks into the folder.
  std::optional<std::string> get(std::string_view kind, const Digest& key);
  void put(std::string_view kind, const Digest& key, std::string_view bytes);
  // Bytes that get() gave and that mean nothing: the entry goes, and was a miss.
  void refuse(std::string_view kind, const Digest& key, const std::string& reason);

  std::map<std::string, Counts> counts() const;  // by kind
  // A sentence for each thing that went wrong so far.
  std::vector<std::string> problems() const;

 private:
  struct Problem {
    std::string entry;  // the first one; empty: the folder
    int64_t more = 0;
  };

  Support open_folder(bool make, Descriptor& folder) const;
  std::optional<std::string> read(const std::string& name, const Digest& key);
  void count(std::string_view kind, int64_t hits, int64_t misses);
  void note(const std::string& reason, const std::string& entry = "");
  void make_room(int folder, uint64_t bytes);
  uint64_t sweep(int folder, uint64_t target) const;

  const std::string folder_;
  const uint64_t limit_bytes_;
  mutable std::mutex mutex_;
  std::map<std::string, Counts> counts_;
  std::map<std::string, Problem> problems_;  // by reason
  bool writes_ = true;                       // until one fails
  // Bytes in the folder as last counted, and what was written here since.
  std::optional<uint64_t> counted_;
  uint64_t written_ = 0;
};

}  // namespace tenon
