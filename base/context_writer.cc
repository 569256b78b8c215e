#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/context_file.h"
#include "base/context_form.h"
#include "base/error.h"
#include "base/publish_file.h"
#include "base/replace_file.h"
#include "base/thread_pool.h"

namespace tenon {
namespace {

uint64_t aligned(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

// Where the bytes go. Pieces that do not overlap may be written by several threads.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void make_room(uint64_t bytes) = 0;  // of all; what is new holds zeros
  virtual void write(uint64_t offset, std::string_view bytes) = 0;
  virtual void publish(const Digest& digest) = 0;
  virtual std::string take() = 0;
};

class FileSink final : public Sink {
 public:
  FileSink(const std::string& folder, ContextWriter::NameOf name_of)
      : folder_(folder), name_of_(std::move(name_of)) {
    Support support;
    file_ = PendingFile::make(folder, support);
    if (!support) fail(support.reason);
  }
  void make_room(uint64_t bytes) override {
    if (::ftruncate(file_->number(), static_cast<off_t>(bytes)) != 0) fail(because_of_errno());
  }
  void write(uint64_t offset, std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written =
          ::pwrite(file_->number(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(because_of_errno());
      bytes.remove_prefix(static_cast<size_t>(written));
      offset += static_cast<uint64_t>(written);
    }
  }
  void publish(const Digest& digest) override {
    const std::string name = name_of_(digest);
    if (const Support published = file_->publish(name); !published) fail(published.reason);
  }
  std::string take() override { throw InternalError("a context that is a file has no bytes"); }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw UserError(fmt::format("cannot write a context file in '{}': {}",
                                folder_.empty() ? "." : folder_, reason));
  }

  const std::string folder_;
  const ContextWriter::NameOf name_of_;
  std::unique_ptr<PendingFile> file_;
};

class MemorySink final : public Sink {
 public:
  void make_room(uint64_t bytes) override { bytes_.resize(bytes); }
  void write(uint64_t offset, std::string_view bytes) override {
    std::memcpy(bytes_.data() + offset, bytes.data(), bytes.size());
  }
  void publish(const Digest&) override {}
  std::string take() override { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Pieces are whole units, chunks need not be: what lies across an end is made for both sides.
// use(the chunk).
template <typename Use>
void make_chunk(uint64_t bytes, uint64_t chunk, const ContextWriter::Fill& fill, size_t unit,
                const Use& use) {
  const uint64_t first = chunk * kContextChunkBytes;
  const uint64_t last = std::min(first + kContextChunkBytes, bytes);
  const uint64_t from = first / unit * unit, to = std::min(aligned(last, unit), bytes);
  const auto room = std::make_unique_for_overwrite<std::byte[]>(to - from);
  fill(static_cast<int64_t>(from), {room.get(), to - from});
  use(std::span<const std::byte>(room.get() + (first - from), last - first));
}

uint64_t chunks_of(uint64_t bytes) { return (bytes + kContextChunkBytes - 1) / kContextChunkBytes; }

class SectionWriter final : public ContextWriter {
 public:
  explicit SectionWriter(std::unique_ptr<Sink> sink) : sink_(std::move(sink)) {}

  bool has(std::string_view name) const override { return entries_.contains(std::string(name)); }
  uint64_t bytes() const override { return end_; }
  std::string take() override { return sink_->take(); }
  const Digest& digest() const override { return digest_; }

  void add(std::string_view name, std::string_view bytes) override {
    const uint64_t offset = aligned(end_, kSectionAlignment);
    Entry& entry = add_entry(name, {SectionKind::kParsed, offset, bytes.size(), {sha256(bytes)}});
    sink_->make_room(offset + entry.bytes);
    sink_->write(offset, bytes);
    end_ = offset + entry.bytes;
  }

  void add_data(std::string_view name, uint64_t bytes, const Fill& fill, size_t unit) override {
    if (bytes == 0) throw InternalError("data without bytes is no section");
    const uint64_t offset = aligned(end_, kContextAlignment);
    const uint64_t chunks = chunks_of(bytes);
    Entry entry{SectionKind::kData, offset, bytes, std::vector<Digest>(chunks)};
    sink_->make_room(offset + bytes);
    parallel_for_each(static_cast<int64_t>(chunks), [&](int64_t chunk) {
      write_chunk(entry, static_cast<uint64_t>(chunk), fill, unit);
    });
    const auto [known, is_new] = offsets_.try_emplace({bytes, entry.digests}, offset);
    entry.offset = known->second;
    add_entry(name, std::move(entry));
    if (is_new) {
      end_ = offset + bytes;
    } else {
      sink_->make_room(end_);  // and what was written is gone
    }
  }

  void finish() override {
    ByteWriter table;
    table.number(uint64_t{entries_.size()});
    for (const auto& [name, entry] : entries_) {
      table.text(name);
      table.number(static_cast<uint8_t>(entry.kind));
      table.number(entry.offset);
      table.number(entry.bytes);
      for (const Digest& digest : entry.digests) table.bytes(ContextHead::text_of(digest));
    }
    const std::string bytes = table.take();
    const uint64_t offset = aligned(end_, kSectionAlignment);
    digest_ = sha256(bytes);
    const ContextHead head{offset + bytes.size(), offset, bytes.size(), digest_};
    sink_->make_room(head.file_bytes);
    sink_->write(offset, bytes);
    sink_->write(0, head.to_bytes());
    sink_->publish(digest_);
    end_ = head.file_bytes;
  }

 private:
  struct Entry {
    SectionKind kind{};
    uint64_t offset = 0, bytes = 0;
    std::vector<Digest> digests;
  };

  Entry& add_entry(std::string_view name, Entry entry) {
    const auto [place, is_new] = entries_.try_emplace(std::string(name), std::move(entry));
    if (!is_new) throw InternalError(fmt::format("section '{}' is there already", name));
    return place->second;
  }

  void write_chunk(Entry& entry, uint64_t chunk, const Fill& fill, size_t unit) {
    make_chunk(entry.bytes, chunk, fill, unit, [&](std::span<const std::byte> made) {
      entry.digests[chunk] = sha256(made);
      sink_->write(entry.offset + chunk * kContextChunkBytes,
                   {reinterpret_cast<const char*>(made.data()), made.size()});
    });
  }

  std::unique_ptr<Sink> sink_;
  uint64_t end_ = ContextHead::kBytes;
  Digest digest_{};
  std::map<std::string, Entry> entries_;
  std::map<std::pair<uint64_t, std::vector<Digest>>, uint64_t> offsets_;  // of data that is there
};

}  // namespace

std::vector<Digest> digests_of(uint64_t bytes, const ContextWriter::Fill& fill, size_t unit) {
  std::vector<Digest> digests(chunks_of(bytes));
  parallel_for_each(static_cast<int64_t>(digests.size()), [&](int64_t chunk) {
    make_chunk(bytes, static_cast<uint64_t>(chunk), fill, unit,
               [&](std::span<const std::byte> made) { digests[chunk] = sha256(made); });
  });
  return digests;
}

std::vector<Digest> digests_of(std::span<const std::byte> bytes) {
  std::vector<Digest> digests(chunks_of(bytes.size()));
  const DataSection data{"", bytes, digests};
  parallel_for_each(static_cast<int64_t>(digests.size()),
                    [&](int64_t chunk) { digests[chunk] = sha256(data.chunk(chunk)); });
  return digests;
}

std::unique_ptr<ContextWriter> ContextWriter::to_file(const std::string& folder, NameOf name_of) {
  return std::make_unique<SectionWriter>(std::make_unique<FileSink>(folder, std::move(name_of)));
}

std::unique_ptr<ContextWriter> ContextWriter::to_memory() {
  return std::make_unique<SectionWriter>(std::make_unique<MemorySink>());
}

}  // namespace tenon
