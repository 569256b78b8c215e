// Stores of sums whose 16-bit elements lie along the rows of memory. Four lanes hold 32 bytes of a
// row in pairs of elements; stored as they lie, a warp writes 16 bytes to each of eight rows. The
// four exchange pairs first, so that each has 16 bytes of its own and the warp writes 64 to a row.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <array>

#include "codegen/llvm/emit_gpu.h"
#include "codegen/moves.h"

namespace tenon::codegen {

namespace {

constexpr int kPairs = 4;  // of a vector, and lanes that exchange them

// Bits of a column's number: which element of a pair, which of the four lanes, which register.
constexpr std::array<int, 2> kOfLane{1, 2}, kOfRegister{3, 4};

}  // namespace

// Where elements lie after the exchange; nothing where they do not begin as sums of a product do.
std::optional<Layout> GpuEmitter::quad_layout(const Layout& from, const Type& type) const {
  if (!from.is_bits() || type.shape.size() != 2 || bit_width(type.dtype) != 16) return std::nullopt;
  const bool in_pairs = !from.register_bits.empty() && from.register_bits[0] == 0;
  if (!in_pairs || from.columns < 8 * kPairs || from.thread_bits.size() < 5) return std::nullopt;
  Layout to = from;
  for (size_t i = 0; i < kOfLane.size(); ++i) {
    const auto found = std::ranges::find(to.register_bits, kOfRegister[i]);
    if (from.thread_bits[i] != kOfLane[i] || found == to.register_bits.end()) return std::nullopt;
    to.thread_bits[i] = kOfRegister[i];
    *found = kOfLane[i];
  }
  return to;
}

// One bit of a lane's number for one of a register's: of two words a lane gives one away.
void GpuEmitter::exchange_words(Tile& words, int lane_bit, size_t register_bit) {
  Value* upper = ir_.CreateICmpNE(ir_.CreateAnd(lane_, number(1 << lane_bit)), number(0));
  const size_t distance = size_t{1} << register_bit;
  for (size_t low = 0; low < words.size(); ++low) {
    if (low & distance) continue;
    Value *&first = words[low], *&second = words[low + distance];
    Value* got = shuffle_word(ir_.CreateSelect(upper, first, second), 1 << lane_bit);
    first = ir_.CreateSelect(upper, got, first);
    second = ir_.CreateSelect(upper, second, got);
  }
}

void GpuEmitter::store_in_quads(const Access& to, const Layout& from, const Layout& quads,
                                const Type& type, const Tile& in) {
  Tile words, tile;
  for (size_t i = 0; i < in.size(); i += 2) {
    words.push_back(pack_lanes(type.dtype, {in.data() + i, 2})[0]);
  }
  for (size_t i = 0; i < kOfLane.size(); ++i) {
    const auto found = std::ranges::find(from.register_bits, kOfRegister[i]);
    const auto bit = static_cast<size_t>(found - from.register_bits.begin());
    exchange_words(words, static_cast<int>(i), bit - 1);  // a word has both elements of a pair
  }
  for (Value* word : words) {
    for (Value* element : unpack_lanes(type.dtype, {word}, 2)) tile.push_back(element);
  }
  Layout along = quads;  // registers that hold neighbours follow each other
  std::ranges::stable_partition(along.register_bits, [](int bit) { return bit < 3; });
  std::ranges::sort(along.register_bits.begin(), along.register_bits.begin() + 3);
  Tile ordered;
  const std::vector<int> order = registers_in_place(quads, along).value();
  for (const int reg : order) ordered.push_back(tile[static_cast<size_t>(reg)]);
  store_groups(to, along, type, 2 * kPairs, ordered);
}

}  // namespace tenon::codegen
