// The bytes of a context file; only its own .cc files and its fuzzer include this.
//
//   head    magic, form, length of the file, where its table is, SHA-256 of the table and of this
//   …       sections: parsed ones at multiples of 64, data at multiples of 4096, zeros between them
//   table   per section: name, kind, offset, length, SHA-256 (of data: one per 16 MiB)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/byte_form.h"
#include "base/hash.h"

namespace tenon {

inline constexpr std::string_view kContextMagic = "TENONCTX";
inline constexpr uint32_t kContextForm = 1;
inline constexpr uint64_t kSectionAlignment = 64;

enum class SectionKind : uint8_t { kParsed, kData };

struct ContextHead {
  // magic, form, length of the file, offset and length of the table, digest of the table; digest
  static constexpr size_t kBytes = 8 + 4 + 8 + 8 + 8 + 32 + 32;
  uint64_t file_bytes = 0, table_offset = 0, table_bytes = 0;
  Digest table{};

  std::string to_bytes() const {
    ByteWriter writer;
    writer.bytes(kContextMagic);
    writer.number(kContextForm);
    for (const uint64_t number : {file_bytes, table_offset, table_bytes}) writer.number(number);
    writer.bytes(text_of(table));
    std::string bytes = writer.take();
    const Digest all = sha256(bytes);
    return bytes.append(text_of(all));
  }
  static std::string_view text_of(const Digest& digest) {
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
  }
};

}  // namespace tenon
