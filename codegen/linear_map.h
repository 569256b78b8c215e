// Linear maps over bits: each bit of the input switches some bits of the output. Where sizes are
// powers of two, layouts, swizzles and rearrangements are such maps, and what two of them do one
// after the other, whether it can be undone, and how often a bank of shared memory is hit twice are
// questions of linear algebra.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tenon::codegen {

class LinearMap {
 public:
  LinearMap() = default;
  // columns[i]: what bit i of the input switches.
  LinearMap(int outputs, std::vector<uint64_t> columns)
      : outputs_(outputs), columns_(std::move(columns)) {}
  static LinearMap identity(int bits);
  // Bit i of the input becomes bit places[i] of the output, or none where that is negative.
  static LinearMap of_bits(int outputs, std::span<const int> places);
  bool operator==(const LinearMap&) const = default;

  int inputs() const { return static_cast<int>(columns_.size()); }
  int outputs() const { return outputs_; }
  const std::vector<uint64_t>& columns() const { return columns_; }
  uint64_t operator()(uint64_t input) const;

  // x -> this(inner(x))
  LinearMap after(const LinearMap& inner) const;
  // Some of the inputs, the others being 0; some of the outputs, the others left out.
  LinearMap from_inputs(int first, int count) const;
  LinearMap to_outputs(int first, int count) const;

  int rank() const;
  bool is_onto() const { return rank() == outputs_; }        // every output has an input
  bool is_one_to_one() const { return rank() == inputs(); }  // no output has two
  // The inputs that make no difference, as a basis: who holds copies of what input 0 holds.
  std::vector<uint64_t> copies() const;
  // An input with this output, the one that uses the lowest bits.
  std::optional<uint64_t> solve(uint64_t output) const;
  // The map that comes before this one to make `whole` of both. Nothing where there is none.
  std::optional<LinearMap> before(const LinearMap& whole) const;
  // this(inverse(y)) == y; where there are copies it leads to those of the lowest bits. Nothing
  // where some y has no input.
  std::optional<LinearMap> inverse() const;

 private:
  int outputs_ = 0;
  std::vector<uint64_t> columns_;
};

// ---- shared memory

inline constexpr int kBanks = 32, kBankBytes = 4, kAccessBytes = 16;

// Bytes of rows of `row_bytes` (16, 32, 64 or 128), as TMA leaves them: 16-byte units change places
// with those whose number differs in the bits of the row, or of what rows narrower than 128 bytes
// repeat after. A map of byte addresses onto byte addresses, its own inverse.
LinearMap swizzled_rows(int row_bytes, int address_bits);

// How many times the banks must be asked to serve one access by a warp, each lane reading or
// writing `bytes` at its address; 16 bytes go in quarters of a warp, 8 in halves. Lanes with the
// same word share it. The second form takes any addresses, also of fewer lanes.
int wavefronts(const LinearMap& address_of_lane, int bytes);
int wavefronts(std::span<const int64_t> address_of_lane, int bytes);

}  // namespace tenon::codegen
