#include "base/context_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/context_form.h"
#include "base/error.h"
#include "base/file_mapping.h"
#include "base/thread_pool.h"

namespace tenon {
namespace {

struct Entry {
  std::string_view name;  // in the table
  SectionKind kind{};
  uint64_t offset = 0, bytes = 0;
  std::span<const Digest> digests;  // in the table

  uint64_t end() const { return offset + bytes; }
};
// The name's length and a letter, kind, offset, bytes and a digest. Entries take no more memory.
constexpr size_t kLeastEntryBytes = 8 + 1 + 1 + 8 + 8 + sizeof(Digest);
static_assert(sizeof(Entry) <= kLeastEntryBytes);

// A file's bytes, wherever they are. All messages name where they came from.
class Contents : public ContextFile {
 public:
  const std::string& origin() const override { return origin_; }
  uint64_t bytes() const override { return all_.size(); }
  const Digest& digest() const override { return digest_; }

  std::vector<std::string_view> names() const override {
    std::vector<std::string_view> names;
    for (const Entry& entry : entries_) names.push_back(entry.name);
    return names;
  }
  bool has(std::string_view name) const override { return find(name) != nullptr; }
  bool has_data(std::string_view name) const override {
    const Entry* entry = find(name);
    return entry != nullptr && entry->kind == SectionKind::kData;
  }

  std::string_view section(std::string_view name) const override {
    const Entry& entry = get(name, SectionKind::kParsed);
    const std::string_view bytes = text_at(entry.offset, entry.bytes);
    if (sha256(bytes) != entry.digests[0]) fail_changed(name);
    return bytes;
  }

  DataSection data(std::string_view name) const override {
    const Entry& entry = get(name, SectionKind::kData);
    return {entry.name, all_.subspan(entry.offset, entry.bytes), entry.digests};
  }

 protected:
  Contents(std::string origin, std::span<const std::byte> all)
      : origin_(std::move(origin)), all_(all) {}

  void read() {
    read_head();
    read_table();
    check_places();
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(fmt::format("{}: {}. Compile the model again", origin_, what));
  }

  [[noreturn]] void fail_changed(std::string_view name) const override {
    fail(fmt::format("section '{}' is not what was written (SHA-256 differs)", name));
  }

 private:
  std::string_view text_at(uint64_t offset, uint64_t bytes) const {
    return {reinterpret_cast<const char*>(all_.data()) + offset, bytes};
  }

  const Entry* find(std::string_view name) const {
    const auto found = std::ranges::lower_bound(entries_, name, {}, &Entry::name);
    return found != entries_.end() && found->name == name ? &*found : nullptr;
  }
  const Entry& get(std::string_view name, SectionKind kind) const {
    const Entry* entry = find(name);
    if (entry == nullptr || entry->kind != kind) fail(fmt::format("it has no section '{}'", name));
    return *entry;
  }

  void read_head() {
    const std::string_view magic = text_at(0, std::min<uint64_t>(all_.size(), 8));
    if (magic != kContextMagic) fail("this is no context of Tenon's");
    if (all_.size() < ContextHead::kBytes) fail("the file ends too early");
    ByteReader reader(text_at(8, ContextHead::kBytes - 8));
    if (const auto form = reader.number<uint32_t>(); form != kContextForm) {
      fail(fmt::format("it has form {}, and this version of Tenon reads form {}", form,
                       kContextForm));
    }
    const auto length = reader.number<uint64_t>(), offset = reader.number<uint64_t>(),
               bytes = reader.number<uint64_t>();
    const std::string_view table_digest = reader.bytes(sizeof(Digest));
    const Digest head = sha256(text_at(0, ContextHead::kBytes - sizeof(Digest)));
    if (reader.bytes(sizeof(Digest)) != ContextHead::text_of(head)) {
      fail("its head is not what was written (SHA-256 differs)");
    }
    if (length != all_.size()) {
      fail(fmt::format("it has {} bytes, and {} were written", all_.size(), length));
    }
    if (offset < ContextHead::kBytes || offset > length || length - offset != bytes) {
      fail("its table of sections lies outside");
    }
    table_offset_ = offset;
    table_ = text_at(offset, bytes);
    digest_ = sha256(table_);
    if (ContextHead::text_of(digest_) != table_digest) {
      fail("its table of sections is not what was written (SHA-256 differs)");
    }
  }

  void read_table() try {
    ByteReader reader(table_);
    const auto count = reader.number<uint64_t>();
    if (count > reader.left() / kLeastEntryBytes) throw UserError("too many are claimed");
    entries_.reserve(count);
    for (uint64_t i = 0; i < count; ++i) entries_.push_back(read_entry(reader));
    if (reader.left() != 0) throw UserError("bytes are left");
    for (size_t i = 1; i < entries_.size(); ++i) {
      if (entries_[i - 1].name >= entries_[i].name) throw UserError("it is not sorted");
    }
  } catch (const UserError& error) {
    fail(fmt::format("its table of sections cannot be read: {}", error.what()));
  }

  Entry read_entry(ByteReader& reader) const {
    Entry entry;
    entry.name = reader.text();
    const auto kind = reader.number<uint8_t>();
    entry.offset = reader.number<uint64_t>();
    entry.bytes = reader.number<uint64_t>();
    if (entry.name.empty() || kind > static_cast<uint8_t>(SectionKind::kData)) {
      throw UserError("a section has no name or no kind");
    }
    entry.kind = static_cast<SectionKind>(kind);
    const bool is_data = entry.kind == SectionKind::kData;
    const uint64_t alignment = is_data ? kContextAlignment : kSectionAlignment;
    if (entry.offset < ContextHead::kBytes || entry.offset > table_offset_ ||
        entry.bytes > table_offset_ - entry.offset || entry.offset % alignment != 0 ||
        (is_data && entry.bytes == 0)) {
      throw UserError(fmt::format("section '{}' lies outside", entry.name));
    }
    const uint64_t digests =
        is_data ? (entry.bytes + kContextChunkBytes - 1) / kContextChunkBytes : 1;
    const std::string_view raw = reader.bytes(digests * sizeof(Digest));
    entry.digests = {reinterpret_cast<const Digest*>(raw.data()), digests};
    return entry;
  }

  // Sections do not overlap, but for data that several names share, and between them are zeros: so
  // no byte of the file is without a check.
  void check_places() {
    std::ranges::sort(entries_, {},
                      [](const Entry& entry) { return std::pair(entry.offset, entry.bytes); });
    uint64_t end = ContextHead::kBytes;
    const Entry* before = nullptr;
    for (const Entry& entry : entries_) {
      const bool is_shared = before != nullptr && entry.kind == SectionKind::kData &&
                             before->kind == SectionKind::kData && entry.offset == before->offset &&
                             entry.bytes == before->bytes;
      if (!is_shared) check_gap(end, entry.offset);
      end = entry.end();
      before = &entry;
    }
    check_gap(end, table_offset_);
    std::ranges::sort(entries_, {}, &Entry::name);
  }

  void check_gap(uint64_t from, uint64_t to) const {
    if (from > to) fail("sections overlap");
    if (to - from >= kContextAlignment) fail("there are bytes that belong to no section");
    const std::string_view gap = text_at(from, to - from);
    if (gap.find_first_not_of('\0') != gap.npos) fail("bytes between sections were changed");
  }

  const std::string origin_;
  const std::span<const std::byte> all_;
  uint64_t table_offset_ = 0;
  std::string_view table_;
  Digest digest_{};
  std::vector<Entry> entries_;  // by name
};

constexpr const char* kFile = "context file";
std::string origin_of(const std::string& path) { return fmt::format("{} '{}'", kFile, path); }

class MappedFile final : private FileMapping, public Contents {
 public:
  explicit MappedFile(const std::string& path)
      : FileMapping(path, kFile), Contents(origin_of(path), FileMapping::bytes()) {
    read();
  }
  using Contents::bytes;
  bool is_mapped() const override { return true; }
};

// Aligned as data in a file is.
class AlignedCopy {
 public:
  explicit AlignedCopy(std::string_view bytes) : AlignedCopy(bytes.size()) {
    if (size_ > 0) std::memcpy(start_, bytes.data(), size_);
  }
  explicit AlignedCopy(const RegularFile& file) : AlignedCopy(file.size) {
    const auto chunks = static_cast<int64_t>((size_ + kContextChunkBytes - 1) / kContextChunkBytes);
    parallel_for_each(chunks, [&](int64_t chunk) {
      const uint64_t first = static_cast<uint64_t>(chunk) * kContextChunkBytes;
      read(file, first, std::min<uint64_t>(first + kContextChunkBytes, size_));
    });
  }
  AlignedCopy(const AlignedCopy&) = delete;
  AlignedCopy& operator=(const AlignedCopy&) = delete;
  ~AlignedCopy() { ::operator delete (start_, std::align_val_t{kContextAlignment}); }
  std::span<const std::byte> bytes() const { return {start_, size_}; }

 private:
  explicit AlignedCopy(size_t size)
      : size_(size),
        start_(static_cast<std::byte*>(
            ::operator new (std::max<size_t>(size_, 1), std::align_val_t{kContextAlignment}))) {}

  // What the file does not have any more stays zero, and its digest tells.
  void read(const RegularFile& file, uint64_t first, uint64_t last) const {
    while (first < last) {
      const ssize_t count = ::pread(file.descriptor.number(), start_ + first, last - first,
                                    static_cast<off_t>(first));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return static_cast<void>(std::memset(start_ + first, 0, last - first));
      first += static_cast<uint64_t>(count);
    }
  }

  size_t size_;
  std::byte* start_;
};

class CopiedFile final : private AlignedCopy, public Contents {
 public:
  explicit CopiedFile(std::string_view bytes)
      : AlignedCopy(bytes), Contents("embedded context", AlignedCopy::bytes()) {
    Contents::read();
  }
  explicit CopiedFile(const std::string& path)
      : AlignedCopy(RegularFile(path, kFile)), Contents(origin_of(path), AlignedCopy::bytes()) {
    Contents::read();
  }
  using Contents::bytes;
  bool is_mapped() const override { return false; }
};

}  // namespace

std::shared_ptr<const ContextFile> ContextFile::open(const std::string& path) {
  return std::make_shared<const MappedFile>(path);
}

std::shared_ptr<const ContextFile> ContextFile::read(const std::string& path) {
  return std::make_shared<const CopiedFile>(path);
}

std::shared_ptr<const ContextFile> ContextFile::from_bytes(std::string_view bytes) {
  return std::make_shared<const CopiedFile>(bytes);
}

std::span<const std::byte> DataSection::chunk(size_t number) const {
  const uint64_t first = std::min<uint64_t>(number * kContextChunkBytes, bytes.size());
  return bytes.subspan(first, std::min(kContextChunkBytes, bytes.size() - first));
}

void CheckedData::verify(const DataSection& data, size_t chunk,
                         std::span<const std::byte> bytes) const {
  if (chunk >= data.digests.size() || sha256(bytes) != data.digests[chunk]) {
    fail_changed(data.name);
  }
}

void CheckedData::verify(const DataSection& data, size_t chunk) const {
  verify(data, chunk, data.chunk(chunk));
}

void CheckedData::verify_pair(const Chunk& first, const Chunk& second) {
  const std::array<const Chunk*, 2> both{&first, &second};
  const std::array<Digest, 2> found =
      sha256_pair(first.data.chunk(first.number), second.data.chunk(second.number));
  for (size_t i = 0; i < both.size(); ++i) {
    const auto& [source, data, number] = *both[i];
    if (number >= data.digests.size() || found[i] != data.digests[number]) {
      source.fail_changed(data.name);
    }
  }
}

}  // namespace tenon
