// How saved programs are spelt: numbers of 64 bits, texts, lists, and sizes by their place in a
// table, for most of them come up again and again.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/byte_form.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/shape.h"

namespace tenon::kernels {

class SavedWriter {
 public:
  void number(int64_t value) { body_.number(value); }
  void number(size_t value) { body_.number(static_cast<int64_t>(value)); }
  void number(int value) { body_.number(int64_t{value}); }
  void flag(bool value) { body_.number(uint8_t{value}); }
  void real(double value) { body_.number(std::bit_cast<uint64_t>(value)); }
  template <typename Enum>
  void kind(Enum value) {
    body_.number(static_cast<uint8_t>(value));
  }
  void text(std::string_view value) { body_.text(value); }
  void dim(const Dim& value) {
    const auto [place, is_new] = places_.try_emplace(value.text(), places_.size());
    if (is_new) dims_.text(place->first);
    number(place->second);
  }
  // write(item) for each.
  template <typename List, typename Write>
  void list(const List& items, const Write& write) {
    number(items.size());
    for (const auto& item : items) write(item);
  }
  void shape(const Shape& shape) {
    list(shape, [&](const Dim& size) { dim(size); });
  }
  void numbers(const auto& items) {
    list(items, [&](const auto item) { number(item); });
  }

  std::string take() {
    ByteWriter all;
    all.number(uint64_t{places_.size()});
    all.bytes(dims_.take());
    all.bytes(body_.take());
    return all.take();
  }

 private:
  ByteWriter body_, dims_;
  std::unordered_map<std::string, size_t> places_;
};

// Throws UserError for what SavedWriter does not write. Lists grow as they are read: what is
// claimed takes no memory.
class SavedReader {
 public:
  explicit SavedReader(std::string_view bytes) : reader_(bytes) {
    const auto count = reader_.number<uint64_t>();
    for (uint64_t i = 0; i < count; ++i) dims_.push_back(Dim::parse(reader_.text()));
  }

  int64_t number(int64_t least = std::numeric_limits<int64_t>::min(),
                 int64_t most = std::numeric_limits<int64_t>::max()) {
    const auto value = reader_.number<int64_t>();
    if (value < least || value > most) throw UserError("a number is out of range");
    return value;
  }
  size_t size() { return static_cast<size_t>(number(0)); }
  int small(int least = 0) {
    return static_cast<int>(number(least, std::numeric_limits<int>::max()));
  }
  bool flag() { return kind<bool>(true); }
  double real() { return std::bit_cast<double>(reader_.number<uint64_t>()); }
  template <typename Enum>
  Enum kind(Enum last) {
    const auto value = reader_.number<uint8_t>();
    if (value > static_cast<uint8_t>(last)) throw UserError("a kind is unknown");
    return static_cast<Enum>(value);
  }
  DType dtype() {
    const DType dtype = kind(DType::kF64);
    if (dtype == DType::kUndefined) throw UserError("an element type is unknown");
    return dtype;
  }
  std::string_view text() { return reader_.text(); }
  Dim dim() {
    const size_t place = size();
    if (place >= dims_.size()) throw UserError("a size is out of range");
    return dims_[place];
  }
  template <typename Read>
  auto list(const Read& read) {
    std::vector<decltype(read())> items;
    for (size_t left = size(); left > 0; --left) items.push_back(read());
    return items;
  }
  Shape shape() {
    return list([&] { return dim(); });
  }
  std::vector<size_t> sizes() {
    return list([&] { return size(); });
  }
  void end() const {
    if (reader_.left() != 0) throw UserError("bytes are left");
  }

 private:
  ByteReader reader_;
  std::vector<Dim> dims_;
};

}  // namespace tenon::kernels
