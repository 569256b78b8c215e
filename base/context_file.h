// A file of named sections that checks itself: what a context model keeps beside its graph, or in a
// node's attribute. Sections that are parsed stand under a SHA-256 that is checked before anybody
// sees them. Data (weights) starts at multiples of 4096 bytes, is mapped and used as it is, and has
// a digest for every 16 MiB, which whoever reads it checks as it goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace tenon {

inline constexpr uint64_t kContextAlignment = 4096;                 // of data
inline constexpr uint64_t kContextChunkBytes = uint64_t{16} << 20;  // of data under one digest

// A part of the file that is not parsed.
struct DataSection {
  std::string_view name;
  std::span<const std::byte> bytes;
  std::span<const Digest> digests;  // one per kContextChunkBytes

  std::span<const std::byte> chunk(size_t number) const;  // empty past the last
};

// Writes section behind section; what was not finished leaves nothing behind. Not for several
// threads.
class ContextWriter {
 public:
  // Writes bytes [first, first + out.size()) to `out`. Called for pieces in any order, from several
  // threads.
  using Fill = std::function<void(int64_t first, std::span<std::byte> out)>;

  // A file's name may say what is in it.
  using NameOf = std::function<std::string(const Digest& digest)>;
  // Written in `folder` where nobody finds it, and named by finish(). Throws UserError where that
  // is not possible.
  static std::unique_ptr<ContextWriter> to_file(const std::string& folder, NameOf name_of);
  static std::unique_ptr<ContextWriter> to_memory();
  virtual ~ContextWriter() = default;

  virtual bool has(std::string_view name) const = 0;
  // A section that is parsed. Its name must be new.
  virtual void add(std::string_view name, std::string_view bytes) = 0;
  // Data, made in pieces of whole units. Bytes that a section before has are not written again.
  virtual void add_data(std::string_view name, uint64_t bytes, const Fill& fill,
                        size_t unit = 1) = 0;
  // Throws UserError where the file cannot be written.
  virtual void finish() = 0;
  virtual const Digest& digest() const = 0;  // as the file's, after finish()
  virtual std::string take() = 0;            // what to_memory() made, after finish()
  virtual uint64_t bytes() const = 0;        // so far
};

// As add_data() would store them.
std::vector<Digest> digests_of(uint64_t bytes, const ContextWriter::Fill& fill, size_t unit);
std::vector<Digest> digests_of(std::span<const std::byte> bytes);

// Where data is read from that has digests.
class CheckedData {
 public:
  virtual ~CheckedData() = default;

  // Whether these are the bytes that were written; UserError where not. `bytes`: of the chunk,
  // perhaps a copy.
  void verify(const DataSection& data, size_t chunk, std::span<const std::byte> bytes) const;
  void verify(const DataSection& data, size_t chunk) const;
  // Two chunks, sooner than one after the other where they are as long.
  struct Chunk {
    const CheckedData& source;
    const DataSection& data;
    size_t number;
  };
  static void verify_pair(const Chunk& first, const Chunk& second);

 protected:
  // Throws UserError that says where the data is.
  [[noreturn]] virtual void fail_changed(std::string_view name) const = 0;
};

// Every cut and every changed bit is a UserError: of the table of sections in open(), of a section
// in section(), of data in verify(). Takes memory for what there is, whatever it claims to be.
// For any number of threads.
class ContextFile : public CheckedData {
 public:
  // Maps the file. What is no regular file, or a symlink, is refused.
  static std::shared_ptr<const ContextFile> open(const std::string& path);
  // The same, copied: whoever cuts or overwrites the file later changes nothing here.
  static std::shared_ptr<const ContextFile> read(const std::string& path);
  // Copied, so that data is aligned.
  static std::shared_ptr<const ContextFile> from_bytes(std::string_view bytes);

  virtual const std::string& origin() const = 0;  // for messages: its path
  virtual uint64_t bytes() const = 0;             // of all of it
  // SHA-256 of the table of sections, and so of everything in it: who has it knows the file.
  virtual const Digest& digest() const = 0;
  virtual bool is_mapped() const = 0;                       // a file stands behind it
  virtual std::vector<std::string_view> names() const = 0;  // parsed ones and data, sorted
  virtual bool has(std::string_view name) const = 0;
  // Lives as long as this. Throws UserError that names the section.
  virtual std::string_view section(std::string_view name) const = 0;
  virtual bool has_data(std::string_view name) const = 0;
  virtual DataSection data(std::string_view name) const = 0;
};

}  // namespace tenon
