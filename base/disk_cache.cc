#include "base/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <ctime>
#include <exception>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/byte_form.h"
#include "base/private_folder.h"
#include "base/replace_file.h"

namespace tenon {
namespace {

// magic, version, key, length of the payload, SHA-256 of the payload
constexpr std::string_view kMagic = "TENONKEY";
constexpr uint32_t kVersion = 1;
constexpr size_t kDigestBytes = std::tuple_size_v<Digest>;
constexpr size_t kHeaderBytes = kMagic.size() + 4 + kDigestBytes + 8 + kDigestBytes;
constexpr std::string_view kPrefix = "tenon-";

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string header(const Digest& key, std::string_view payload) {
  ByteWriter writer;
  writer.bytes(kMagic);
  writer.number(kVersion);
  writer.bytes(view(key));
  writer.number(uint64_t{payload.size()});
  writer.bytes(view(sha256(payload)));
  return writer.take();
}

std::string entry_name(std::string_view kind, const Digest& key) {
  return fmt::format("{}{}-{}", kPrefix, kind, hex(key));
}

// Nothing else in the folder is ever removed.
bool is_entry_name(std::string_view name) {
  constexpr size_t kHexBytes = 2 * kDigestBytes;
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + kHexBytes + 2) return false;
  return name[name.size() - kHexBytes - 1] == '-' &&
         std::ranges::all_of(name.substr(name.size() - kHexBytes),
                             [](unsigned char c) { return std::isxdigit(c) != 0; });
}

bool is_temporary_name(std::string_view name) {
  return name.starts_with(kTemporaryPrefix) && name.ends_with(kTemporarySuffix);
}

bool read_all(int file, char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t got = ::read(file, bytes, count);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got;
    count -= static_cast<size_t>(got);
  }
  return true;
}

// The payload of an open entry, or why it is none. The length is believed only where the file has
// it, so that a damaged one costs no memory.
Support read_entry(int file, const Digest& key, uint64_t limit, std::string& payload) {
  struct stat known {};
  if (::fstat(file, &known) != 0) return Support::no(because_of_errno());
  if (!S_ISREG(known.st_mode)) return Support::no("it is not a regular file");
  if (Support ours = is_ours(known); !ours) return ours;
  const auto size = static_cast<uint64_t>(known.st_size);
  if (size < kHeaderBytes) return Support::no("it was cut off");
  if (size > limit) return Support::no("it is larger than the cache may be");
  std::array<char, kHeaderBytes> head{};
  if (!read_all(file, head.data(), head.size())) return Support::no("it cannot be read");
  ByteReader reader({head.data(), head.size()});
  if (reader.bytes(kMagic.size()) != kMagic || reader.number<uint32_t>() != kVersion) {
    return Support::no("it is no entry of this version");
  }
  if (reader.bytes(kDigestBytes) != view(key)) return Support::no("it is another's under its name");
  if (reader.number<uint64_t>() != size - kHeaderBytes) {
    return Support::no("its length is not what was written");
  }
  payload.resize(size - kHeaderBytes);
  if (!read_all(file, payload.data(), payload.size())) return Support::no("it was cut off");
  if (reader.bytes(kDigestBytes) != view(sha256(payload))) {
    return Support::no("its SHA-256 is not what was written");
  }
  return Support::yes();
}

}  // namespace

DiskCache::DiskCache(const std::string& folder, uint64_t limit_bytes)
    : folder_(plain_path(folder)), limit_bytes_(limit_bytes) {
  Descriptor opened;
  if (const Support usable = open_folder(true, opened); !usable) note(usable.reason);
}

Support DiskCache::open_folder(bool make, Descriptor& folder) const {
  return open_private_folder(folder_, make, folder);
}

std::optional<std::string> DiskCache::get(std::string_view kind, const Digest& key) {
  try {
    std::optional<std::string> payload = read(entry_name(kind, key), key);
    count(kind, payload ? 1 : 0, payload ? 0 : 1);
    return payload;
  } catch (const std::exception& error) {
    note(error.what());
    return std::nullopt;
  }
}

std::optional<std::string> DiskCache::read(const std::string& name, const Digest& key) {
  Descriptor folder;
  if (const Support usable = open_folder(false, folder); !usable) {
    if (folder.is_open() || errno != ENOENT) note(usable.reason);
    return std::nullopt;
  }
  // Not to wait for who writes into a FIFO.
  const Descriptor file(
      ::openat(folder.number(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.is_open()) {
    if (errno == ELOOP) {
      note("it is a symlink", name);
    } else if (errno != ENOENT) {
      note(because_of_errno(), name);
    }
    return std::nullopt;
  }
  std::string payload;
  if (const Support sound = read_entry(file.number(), key, limit_bytes_, payload); !sound) {
    note(sound.reason, name);
    return std::nullopt;
  }
  ::futimens(file.number(), nullptr);  // used now; on a read-only disk nothing is removed either
  return payload;
}

void DiskCache::put(std::string_view kind, const Digest& key, std::string_view bytes) {
  try {
    if (const std::lock_guard lock(mutex_); !writes_) return;
    if (bytes.size() + kHeaderBytes > limit_bytes_) return;
    Descriptor folder;
    Support written = open_folder(true, folder);
    if (written) {
      make_room(folder.number(), bytes.size() + kHeaderBytes);
      const std::string head = header(key, bytes);
      const std::string_view parts[] = {head, bytes};
      written = replace_file(folder.number(), entry_name(kind, key), parts, S_IRUSR | S_IWUSR);
    }
    if (written) return;
    note(fmt::format("nothing is kept: {}", written.reason));
    const std::lock_guard lock(mutex_);
    writes_ = false;
  } catch (const std::exception& error) {
    note(error.what());
  }
}

void DiskCache::refuse(std::string_view kind, const Digest& key, const std::string& reason) {
  count(kind, -1, 1);
  const std::string name = entry_name(kind, key);
  note(reason, name);
  Descriptor folder;
  if (open_folder(false, folder)) ::unlinkat(folder.number(), name.c_str(), 0);
}

void DiskCache::count(std::string_view kind, int64_t hits, int64_t misses) {
  const std::lock_guard lock(mutex_);
  Counts& counts = counts_[std::string(kind)];
  counts.hits += hits;
  counts.misses += misses;
}

void DiskCache::note(const std::string& reason, const std::string& entry) {
  const std::lock_guard lock(mutex_);
  const auto [problem, is_new] = problems_.try_emplace(reason, Problem{entry});
  if (!is_new && !entry.empty()) ++problem->second.more;
}

std::map<std::string, DiskCache::Counts> DiskCache::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<std::string> DiskCache::problems() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> sentences;
  for (const auto& [reason, problem] : problems_) {
    if (problem.entry.empty()) {
      sentences.push_back(fmt::format("cache folder '{}': {}", folder_, reason));
      continue;
    }
    sentences.push_back(
        fmt::format("cache folder '{}': entry {}{} is made anew: {}", folder_, problem.entry,
                    problem.more > 0 ? fmt::format(" (and {} more)", problem.more) : "", reason));
  }
  return sentences;
}

// Other processes write as well: the folder is counted again before what we know is worth nothing.
void DiskCache::make_room(int folder, uint64_t bytes) {
  constexpr uint64_t kPart = 16;
  const std::lock_guard lock(mutex_);
  written_ += bytes;
  const bool is_full = !counted_ || *counted_ + written_ > limit_bytes_;
  if (!is_full && written_ <= limit_bytes_ / kPart) return;
  counted_ = sweep(folder, limit_bytes_ - std::min(bytes, limit_bytes_));
  written_ = bytes;
}

// Removes the least recently used entries until `target` bytes are left, with some room above them,
// and what writers left behind that were killed. Returns the bytes that stay.
uint64_t DiskCache::sweep(int folder, uint64_t target) const {
  constexpr time_t kHour = 3600;
  struct Entry {
    timespec used;
    uint64_t bytes;
    std::string name;
  };
  std::vector<Entry> entries;
  uint64_t total = 0;
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> list(own < 0 ? nullptr : ::fdopendir(own), ::closedir);
  if (list == nullptr) return 0;
  while (const dirent* found = ::readdir(list.get())) {
    struct stat known {};
    const std::string_view name = found->d_name;
    if (!is_entry_name(name) && !is_temporary_name(name)) continue;
    if (::fstatat(folder, found->d_name, &known, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(known.st_mode) || known.st_uid != ::geteuid()) continue;
    if (is_temporary_name(name)) {
      if (known.st_mtim.tv_sec + kHour < ::time(nullptr)) ::unlinkat(folder, found->d_name, 0);
      continue;
    }
    total += static_cast<uint64_t>(known.st_size);
    entries.push_back({known.st_mtim, static_cast<uint64_t>(known.st_size), std::string(name)});
  }
  if (total <= target) return total;
  std::ranges::sort(entries, {}, [](const Entry& entry) {
    return std::pair(entry.used.tv_sec, entry.used.tv_nsec);
  });
  for (const Entry& entry : entries) {
    if (total <= target - target / 8) break;
    if (::unlinkat(folder, entry.name.c_str(), 0) == 0 || errno == ENOENT) total -= entry.bytes;
  }
  return total;
}

}  // namespace tenon
