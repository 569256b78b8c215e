// Values as bytes for files: little-endian numbers, texts behind their lengths. Reading checks
// every bound before it allocates.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace tenon {

class ByteWriter {
 public:
  template <std::integral Number>
  void number(Number value) {
    const auto bits = static_cast<uint64_t>(value);
    for (size_t i = 0; i < sizeof(Number); ++i) bytes_ += static_cast<char>(bits >> (8 * i));
  }
  void bytes(std::string_view raw) { bytes_ += raw; }
  void text(std::string_view text) {
    number(uint64_t{text.size()});
    bytes(text);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Every method throws UserError where the bytes end too early. Texts are views of them.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <std::integral Number>
  Number number() {
    const std::string_view raw = bytes(sizeof(Number));
    uint64_t bits = 0;
    for (size_t i = 0; i < raw.size(); ++i) {
      bits |= uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
    }
    return static_cast<Number>(bits);
  }
  std::string_view bytes(uint64_t count) {
    if (count > rest_.size()) throw UserError("the bytes end too early");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::string_view text() { return bytes(number<uint64_t>()); }
  size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

}  // namespace tenon
