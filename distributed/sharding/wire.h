// Fields of a message of Protocol Buffers, one after the other. ONNX files are read with this only
// for what the runtime's graphs do not tell; everything else is skipped without being touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tenon::distributed {

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> message) : left_(message) {}

  // Goes to the next field; false at the end. Throws UserError where the bytes are no message.
  bool next() {
    if (left_.empty()) return false;
    const uint64_t key = take_number();
    field_ = static_cast<int64_t>(key >> 3);
    number_ = 0;
    bytes_ = {};
    switch (key & 7) {
      case 0:
        number_ = take_number();
        return true;
      case 1:
        return take(8), true;
      case 2:
        bytes_ = take(take_number());
        return true;
      case 5:
        return take(4), true;
      default:
        throw UserError("its bytes are no ONNX model");
    }
  }

  int64_t field() const { return field_; }
  int64_t number() const { return static_cast<int64_t>(number_); }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  // Repeated numbers stand alone or packed.
  void add_numbers(std::vector<int64_t>& all) const {
    if (bytes_.data() == nullptr) return all.push_back(number());
    WireReader packed(bytes_);
    while (!packed.left_.empty()) all.push_back(static_cast<int64_t>(packed.take_number()));
  }

 private:
  uint64_t take_number() {
    uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint64_t>(take(1)[0]);
      number |= (byte & 0x7f) << shift;
      if (byte < 0x80) return number;
    }
    throw UserError("its bytes are no ONNX model");
  }

  std::span<const std::byte> take(uint64_t count) {
    if (count > left_.size()) throw UserError("it ends in the middle of a message");
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }

  std::span<const std::byte> left_, bytes_;
  int64_t field_ = 0;
  uint64_t number_ = 0;
};

}  // namespace tenon::distributed
