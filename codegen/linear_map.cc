#include "codegen/linear_map.h"

#include <algorithm>
#include <array>
#include <bit>

namespace tenon::codegen {

namespace {

// Columns combined such that each has a highest bit of its own, and which inputs made them.
class Elimination {
 public:
  explicit Elimination(const std::vector<uint64_t>& columns) {
    for (size_t i = 0; i < columns.size(); ++i) {
      auto [rest, made_of] = reduced(columns[i]);
      made_of ^= uint64_t{1} << i;
      if (rest == 0) {
        copies_.push_back(made_of);
      } else {
        pivots_[static_cast<size_t>(std::bit_width(rest) - 1)] = {rest, made_of};
        ++rank_;
      }
    }
  }

  int rank() const { return rank_; }
  const std::vector<uint64_t>& copies() const { return copies_; }
  // What is left of an output, and the inputs that make up for the difference.
  std::pair<uint64_t, uint64_t> reduced(uint64_t output) const {
    uint64_t made_of = 0;
    for (size_t bit = pivots_.size(); bit-- > 0;) {
      if (!(output >> bit & 1) || pivots_[bit].first == 0) continue;
      output ^= pivots_[bit].first;
      made_of ^= pivots_[bit].second;
    }
    return {output, made_of};
  }

 private:
  std::array<std::pair<uint64_t, uint64_t>, 64> pivots_{};
  std::vector<uint64_t> copies_;
  int rank_ = 0;
};

}  // namespace

LinearMap LinearMap::identity(int bits) {
  std::vector<uint64_t> columns;
  for (int i = 0; i < bits; ++i) columns.push_back(uint64_t{1} << i);
  return {bits, columns};
}

LinearMap LinearMap::of_bits(int outputs, std::span<const int> places) {
  std::vector<uint64_t> columns;
  for (int place : places) columns.push_back(place < 0 ? 0 : uint64_t{1} << place);
  return {outputs, columns};
}

uint64_t LinearMap::operator()(uint64_t input) const {
  uint64_t out = 0;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (input >> i & 1) out ^= columns_[i];
  }
  return out;
}

LinearMap LinearMap::after(const LinearMap& inner) const {
  std::vector<uint64_t> columns;
  for (uint64_t column : inner.columns_) columns.push_back((*this)(column));
  return {outputs_, columns};
}

LinearMap LinearMap::from_inputs(int first, int count) const {
  return {outputs_, {columns_.begin() + first, columns_.begin() + first + count}};
}

LinearMap LinearMap::to_outputs(int first, int count) const {
  std::vector<uint64_t> columns;
  for (uint64_t column : columns_) {
    columns.push_back(column >> first & ((uint64_t{1} << count) - 1));
  }
  return {count, columns};
}

int LinearMap::rank() const { return Elimination(columns_).rank(); }

std::vector<uint64_t> LinearMap::copies() const { return Elimination(columns_).copies(); }

std::optional<uint64_t> LinearMap::solve(uint64_t output) const {
  auto [rest, made_of] = Elimination(columns_).reduced(output);
  return rest == 0 ? std::optional(made_of) : std::nullopt;
}

std::optional<LinearMap> LinearMap::before(const LinearMap& whole) const {
  Elimination elimination(columns_);
  std::vector<uint64_t> columns;
  for (uint64_t column : whole.columns_) {
    auto [rest, made_of] = elimination.reduced(column);
    if (rest != 0) return std::nullopt;
    columns.push_back(made_of);
  }
  return LinearMap(inputs(), columns);
}

std::optional<LinearMap> LinearMap::inverse() const { return before(identity(outputs_)); }

LinearMap swizzled_rows(int row_bytes, int address_bits) {
  LinearMap out = LinearMap::identity(address_bits);
  std::vector<uint64_t> columns = out.columns();
  auto mask = static_cast<uint64_t>(row_bytes - kAccessBytes);
  for (uint64_t& column : columns) column ^= column >> 3 & mask;
  return {address_bits, columns};
}

namespace {

int lanes_at_once(int bytes) { return kBanks * kBankBytes / std::max(bytes, kBankBytes); }

}  // namespace

int wavefronts(const LinearMap& address_of_lane, int bytes) {
  constexpr int kWordBit = 2, kBankBits = 5;
  int lanes = std::countr_zero(static_cast<unsigned>(lanes_at_once(bytes)));
  std::vector<uint64_t> columns(address_of_lane.columns().begin(),
                                address_of_lane.columns().begin() + lanes);
  for (int word = kBankBytes; word < bytes; word *= 2)
    columns.push_back(static_cast<uint64_t>(word));
  LinearMap bytes_touched(address_of_lane.outputs(), columns);
  int words = bytes_touched.to_outputs(kWordBit, address_of_lane.outputs() - kWordBit).rank();
  int banks = bytes_touched.to_outputs(kWordBit, kBankBits).rank();
  return kBanks / lanes_at_once(bytes) << (words - banks);
}

int wavefronts(std::span<const int64_t> address_of_lane, int bytes) {
  auto at_once = static_cast<size_t>(lanes_at_once(bytes));
  int total = 0;
  std::vector<int64_t> words;
  for (size_t first = 0; first < address_of_lane.size(); first += at_once) {
    words.clear();
    size_t count = std::min(at_once, address_of_lane.size() - first);
    for (int64_t address : address_of_lane.subspan(first, count)) {
      for (int64_t word = address / kBankBytes; word * kBankBytes < address + bytes; ++word) {
        words.push_back(word);
      }
    }
    std::ranges::sort(words);
    words.erase(std::ranges::unique(words).begin(), words.end());
    std::array<int, kBanks> in_bank{};
    for (int64_t word : words) ++in_bank[static_cast<size_t>(word % kBanks)];
    total += *std::ranges::max_element(in_bank);
  }
  return total;
}

}  // namespace tenon::codegen
