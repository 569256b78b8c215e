// Which tile, how many slots and splits: from bytes and products, before anything is compiled.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "kernels/llvm/scaled_dot/pipelined_dot.h"

namespace tenon::kernels {
namespace {

// Microseconds on an H200 of a product that waits for the launch before: a kernel counts from its
// beginning to its end.
//
// Bytes that one multiprocessor gets in a microsecond; microseconds that a unit of 128 x 64 weights
// takes to decode, and to multiply with one token. 128 x 32 of tf32 are as many bytes, and take as
// long.
constexpr double kBytes = 32'000, kDecode = 0.1, kProduct = 0.00235;
// To begin a tile and store it, to begin a kernel, to wait for a slot, to meet at a counter; to
// pass on the sums of one token of a split.
constexpr double kPerTile = 0.8, kPerKernel = 2.0, kPerSlot = 0.085, kMeet = 1.4, kPass = 0.034;

// The same for few tokens, whose sums meet in a block; bytes that a multiprocessor gets from the
// second cache level; how long a copy is on its way. Seen in steps of a decoder, each kernel from
// the end of the one before to its own.
constexpr double kPerFewTokens = 3.0, kPerFewTile = 0.2, kPerFewSlot = 0.02, kFewProduct = 0.0003,
                 kFewBytes = 34'000, kFirstSlot = 0.2, kStarved = 2, kCachedBytes = 110'000,
                 kLatency = 1.3;
// To decode a unit where scales multiply the sums of blocks, by one block and by two; how much
// longer it takes where they multiply weights, or where tokens come with the slots, which are then
// given back late. What a block takes to keep its tokens.
constexpr std::array<double, 2> kFewDecode = {0.2, 0.12};
constexpr double kScaled = 1.15, kLateSlot = 0.025, kKeep = 0.1;

// The same of a product that waits for nobody, so that the next one begins where this one leaves
// room: a kernel counts as long as it keeps multiprocessors busy. Fitted to 40 random products with
// up to eight shapes each (TENON_MEASURE=random:40, seed 3791948268, 0.14 root mean square of the
// logarithm).
namespace overlapped {

constexpr double kPerKernel = 1.55, kPerTile = 0.25, kPerTileToken = 0.0145, kPerSlot = 0.033,
                 kMeet = 0.5, kPass = 0.041, kPassOfSplits = 0.0047, kBytes = 28'000;
// A unit by tokens, 8 to 256; by two blocks at once, 8 and 16. With 256 tokens it took 0.74 where x
// was zeros; with numbers the card's power is the limit, and what decodes half as often wins.
constexpr std::array<double, 6> kUnit = {0.09, 0.15, 0.19, 0.227, 0.347, 0.68};
constexpr std::array<double, 2> kUnitOfTwo = {0.1, 0.145};
// A launch overlaps the one before it and the one after it, not all others.
constexpr double kAtOnce = 4;

constexpr double kPerFewTokens = 0.4, kPerFewTile = 0.42, kPerFewSlot = 0.12, kFewUnit = 0.155,
                 kFewProduct = 0.0013, kFewBytes = 26'700, kUnscaledBytes = 31'000,
                 kCachedBytes = 50'500, kLatency = 1.5;
// Of the time to decode, where scales multiply the sums of blocks; what two blocks lose that both
// keep the tokens, where they have more than one tile each.
constexpr double kUnscaled = 0.75, kKeptTwice = 1;

}  // namespace overlapped

constexpr int kMostSlots = 8;
constexpr int kMostScales = 8;  // of a row in a slot, where they wait in registers for sums
constexpr int kFewTokens = 16;  // up to which two blocks share a multiprocessor
// Tokens that a block keeps in shared memory: it reads, or computes, one after the other, each in
// registers.
constexpr int kMostKept = 4;
constexpr int64_t kLongestKept = 8192, kMostKeptBytes = 40 << 10;
constexpr int64_t kLongestRead = 16384;  // where tokens are only read, and neighbours need no room
// Weights so large that it is of no account what neighbours do at their beginning and end.
constexpr int64_t kMostBesideOthers = 128 << 20;
// What the blocks of a multiprocessor fetch before their tokens come.
constexpr int64_t kFetchedBefore = 112 << 10;

// Few tokens come with the slots of weights, or are read by each block when it begins and kept, or
// are computed by it then.
enum class Tokens : uint8_t { kFetched, kKept, kComputed };

int64_t weight_bytes(const FragmentLayout& layout) {
  return layout.row_units() * layout.steps() * layout.unit_words() * 4;
}

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t slot_bytes(const FragmentLayout& layout, int tokens, int units) {
  return int64_t{units} * (layout.unit_words() * 4 + tokens * layout.row_terms * kFragmentRowBytes);
}

// Of few tokens products are not done beside the decoding, and eight warps cannot fill the time
// that they wait for each other's results.
double decode_time(const PipelinedShape& shape) {
  if (shape.tokens > kFewTokens) return kDecode;
  return (shape.blocks == 1 ? 0.165 : 0.14) + 0.0016 * shape.tokens;
}

double estimate(const FragmentLayout& layout, int64_t rows, const PipelinedShape& shape,
                int multiprocessors) {
  const int64_t items = ceil_of(rows, shape.tokens) * layout.row_units() * shape.splits;
  const int64_t turns = ceil_of(items, int64_t{multiprocessors} * shape.blocks);
  const int64_t each =  // of a multiprocessor
      turns * std::min<int64_t>(shape.blocks, ceil_of(items, multiprocessors));
  const auto units = static_cast<double>(ceil_of(layout.steps(), shape.splits));
  const double decode = layout.is_plain() ? 0 : decode_time(shape);
  const double multiply = kProduct * shape.tokens * layout.row_terms;
  // Two blocks decode and multiply at the same time; one does so in turns.
  const bool together = shape.blocks > 1 || layout.is_plain();
  const double compute = together ? std::max(decode, multiply) : decode + multiply;
  const double unit =
      std::max(layout.unit_words() * 4 / kBytes, compute) + kPerSlot / shape.units / shape.blocks;
  const auto splits = static_cast<double>(shape.splits);
  const double overhead =
      kPerTile + (shape.splits > 1 ? kMeet + (1 + splits) * shape.tokens * kPass : 0);
  return kPerKernel + static_cast<double>(each) * units * unit +
         static_cast<double>(turns) * overhead;
}

double estimate_overlapped(const FragmentLayout& layout, int64_t rows, const PipelinedShape& shape,
                           int multiprocessors) {
  namespace o = overlapped;
  const auto items =
      static_cast<double>(ceil_of(rows, shape.tokens) * layout.row_units() * shape.splits);
  const size_t size =
      static_cast<size_t>(std::countr_zero(static_cast<unsigned>(shape.tokens)) - 3);
  const double busy = shape.blocks > 1 ? o::kUnitOfTwo[size] : o::kUnit[size];
  // Weights that are operands already are not decoded.
  const double compute = busy - (layout.is_plain() ? std::min(busy / 2, kDecode) : 0) +
                         o::kPerSlot / shape.units / shape.blocks;
  const double unit = std::max(compute, layout.unit_words() * 4 / o::kBytes);
  const auto splits = static_cast<double>(shape.splits);
  double overhead = o::kPerTile + o::kPerTileToken * shape.tokens;
  if (shape.splits > 1) {
    overhead += o::kMeet + shape.tokens * (o::kPass + o::kPassOfSplits * splits);
  }
  const auto units = static_cast<double>(ceil_of(layout.steps(), shape.splits));
  const double each = units * unit + overhead / shape.blocks;
  const double turns = std::ceil(items / (multiprocessors * shape.blocks));
  return std::max(o::kPerKernel + items / multiprocessors * each,
                  (2 + turns * each * shape.blocks) / o::kAtOnce);
}

// A block's warps share k: nothing waits for other blocks, but each reads all of x.
double estimate_few_tokens(const FragmentLayout& layout, int64_t rows, const PipelinedShape& shape,
                           int multiprocessors, bool overlaps, Tokens from) {
  const int64_t row_tiles = ceil_of(layout.n * shape.groups, kFragmentRows);
  const int64_t tiles = ceil_of(rows, shape.tokens) * row_tiles;
  const int64_t turns = ceil_of(tiles, int64_t{multiprocessors} * shape.blocks);
  const int64_t blocks = std::min<int64_t>(shape.blocks, ceil_of(tiles, multiprocessors));
  const double units = static_cast<double>(layout.steps()) / shape.groups;  // of 128 x 64
  // While a slot is used it is not filled: the others must cover the way to memory. Where tokens
  // are kept it is given back as soon as its words are in registers.
  const bool at_once = turns == 1 && shape.slots * shape.units >= units;
  const double others = at_once || shape.keeps_tokens ? shape.slots : shape.slots - 1;
  const double ahead = others * shape.units * static_cast<double>(blocks);
  const double weight = layout.unit_words() * 4;
  const double terms = shape.tokens * layout.row_terms;
  const double cached = weight + shape.groups * terms * kFragmentDepth * 2;
  if (overlaps) {
    namespace o = overlapped;
    const double bytes = shape.sums_blocks(layout) ? o::kUnscaledBytes : o::kFewBytes;
    const double read = std::max({o::kLatency / ahead, weight / bytes, cached / o::kCachedBytes});
    const double decoding = shape.sums_blocks(layout) ? o::kUnscaled : 1;
    const double kept = shape.keeps_tokens && blocks > 1 && turns > 1 ? o::kKeptTwice : 0;
    const double compute = decoding * o::kFewUnit + o::kFewProduct * terms +
                           o::kPerFewSlot / shape.units / static_cast<double>(blocks);
    const double each =
        units * std::max(read, compute) + o::kPerFewTile / static_cast<double>(blocks);
    return o::kPerFewTokens + kept + static_cast<double>(tiles) / multiprocessors * each;
  }
  const double read = std::max({kLatency / ahead, weight / kFewBytes, cached / kCachedBytes});
  const double decode =
      kFewDecode[static_cast<size_t>(blocks - 1)] * (shape.sums_blocks(layout) ? 1 : kScaled);
  const double compute = decode + kFewProduct * terms + (shape.keeps_tokens ? 0 : kLateSlot);
  const double kept = shape.keeps_tokens ? kKeep * static_cast<double>(blocks) : 0;
  // One slot is used, one is on its way, and one has just come; fewer will do where all there is to
  // fetch is fetched at once, but not beside computing tokens.
  const bool starved = shape.slots < 3 && (from == Tokens::kComputed || !at_once);
  return kPerFewTokens + kept + kFirstSlot / shape.slots + (starved ? kStarved : 0) +
         static_cast<double>(turns * blocks) * units *
             (std::max(read, compute) + kPerFewSlot / shape.units) +
         static_cast<double>(turns) * kPerFewTile;
}

// Blocks have as many tiles each: a multiprocessor that took one more while the launch before still
// filled others would make all wait.
int64_t room_to_itself(const PipelinedShape& shape, const codegen::GpuTarget& gpu) {
  return gpu.shared_bytes / (shape.blocks + 1) + 1;
}

// What the sums of the groups take where they meet, and barriers.
int64_t room_of_shares(int tokens) {
  return std::max<int64_t>(8 << 10, int64_t{kFragmentRows} * (tokens + 2) * 4 + (1 << 10));
}

void add_few_token_shapes(const FragmentLayout& layout, int64_t rows, bool overlaps,
                          const codegen::GpuTarget& gpu, Tokens from,
                          std::vector<PipelinedShape>& shapes) {
  const bool keeps_tokens = from != Tokens::kFetched;
  if (layout.is_plain() || rows > kFewTokens || layout.k % kFragmentDepth != 0) {
    return;
  }
  const int tokens = keeps_tokens ? static_cast<int>(std::bit_ceil(static_cast<uint64_t>(rows)))
                     : rows == 1  ? 1
                     : rows <= 8  ? 8
                                  : 16;
  const int64_t terms = int64_t{tokens} * layout.row_terms;
  const int64_t kept = keeps_tokens ? layout.steps() * terms * (kFragmentDepth + 8) * 2 : 0;
  for (int groups : {8, 4}) {
    for (int units : {1, 2, 4, 8}) {
      if (layout.steps() % (groups * units) != 0) continue;
      if (units == 8 && keeps_tokens && !overlaps) continue;  // a slot comes late
      const int64_t all = layout.steps() / (groups * units);
      PipelinedShape shape{
          .tokens = tokens, .units = units, .groups = groups, .keeps_tokens = keeps_tokens};
      const int64_t with_slot = keeps_tokens ? 0 : groups * terms * kFragmentDepth * 2;
      const int64_t slot = int64_t{units} * (layout.unit_words() * 4 + with_slot);
      const int64_t tiles = ceil_of(layout.n * groups, kFragmentRows);
      // What a block fetches before its tokens come is in their way: memory answers in turn. Where
      // there is much more to fetch that does not count.
      const bool is_long = weight_bytes(layout) > kMostBesideOthers;
      // Neighbours that overlap find room; who waits fills its places, and all of them evenly.
      const int64_t blocks_of_others = overlaps ? 2 : 1;
      const int most_blocks = overlaps && keeps_tokens && groups < 8 ? 1 : 2;
      for (shape.blocks = 1; shape.blocks <= most_blocks; ++shape.blocks) {
        int last = 0;
        const int64_t in_time = std::max<int64_t>(2, kFetchedBefore / (slot * shape.blocks));
        for (int64_t kernels = blocks_of_others; kernels >= 1; --kernels) {
          const int64_t room =
              gpu.shared_bytes / (shape.blocks * kernels) - room_of_shares(tokens) - kept;
          const int64_t turns = ceil_of(tiles, gpu.multiprocessors * int64_t{shape.blocks});
          int64_t most = overlaps ? all : all * turns;  // that a block ever fills
          if (!overlaps && keeps_tokens && !is_long) most = std::min(most, in_time);
          shape.slots = static_cast<int>(std::min({room / slot, most, int64_t{kMostSlots}}));
          if (shape.slots < 2 || shape.slots == std::exchange(last, shape.slots)) continue;
          shape.shared_bytes = overlaps ? 0 : room_to_itself(shape, gpu);
          shape.microseconds =
              estimate_few_tokens(layout, rows, shape, gpu.multiprocessors, overlaps, from);
          shapes.push_back(shape);
        }
      }
    }
  }
}

// All splits of one kind of tile.
void add_shapes(const FragmentLayout& layout, int64_t rows, bool overlaps,
                const codegen::GpuTarget& gpu, PipelinedShape shape,
                std::vector<PipelinedShape>& shapes) {
  // For what is stored, and what changes threads where no warps of their own copy.
  const int64_t reserve =
      (gpu.arch == "sm_90a" ? 4 << 10 : 6 << 10) + std::min(shape.tokens, 32) * 512;
  // Small tiles leave room for a block of a neighbour that overlaps.
  const int64_t blocks = shape.blocks + (overlaps && shape.tokens <= kFewTokens ? 1 : 0);
  const int64_t room = gpu.shared_bytes / (shape.tokens <= kFewTokens ? blocks : 1);
  const int64_t slots = (room - reserve) / slot_bytes(layout, shape.tokens, shape.units);
  if (slots < 2) return;
  const int64_t steps = layout.steps() / shape.units;
  for (int64_t splits = 1; splits <= 16 && splits <= steps; ++splits) {
    // Every split has work.
    const int64_t share = (steps + splits - 1) / splits;
    if ((steps + share - 1) / share != splits) continue;
    shape.splits = splits;
    shape.slots =
        static_cast<int>(std::max<int64_t>(2, std::min({int64_t{kMostSlots}, slots, share})));
    shape.shared_bytes = overlaps ? 0 : room_to_itself(shape, gpu);
    shape.microseconds =
        (overlaps ? estimate_overlapped : estimate)(layout, rows, shape, gpu.multiprocessors);
    shapes.push_back(shape);
  }
}

}  // namespace

std::string PipelinedShape::text() const {
  if (groups > 0) {
    return fmt::format(
        "{}x{} tokens{}, {} slots of {} k shared by {} groups, {} blocks, {:.1f} us expected",
        kFragmentRows / groups, tokens, keeps_tokens ? " kept" : "", slots, units * groups * depth,
        groups, blocks, microseconds);
  }
  return fmt::format("128x{} tokens, {} slots of {} k, {} blocks, {} splits, {:.1f} us expected",
                     tokens, slots, units * depth, blocks, splits, microseconds);
}

std::vector<PipelinedShape> rank_shapes(const FragmentLayout& layout, int64_t rows, bool overlaps,
                                        const codegen::GpuTarget& gpu) {
  if (rows <= kFewTokens && weight_bytes(layout) > kMostBesideOthers) overlaps = false;
  std::vector<PipelinedShape> shapes;
  for (int tokens : {8, 16, 32, 64, 128, 256}) {
    if (tokens > 8 && tokens / 2 >= rows) break;
    // Registers hold the sums twice, and of small blocks more scales.
    if (layout.scales_blocks() && tokens > (layout.sums_of_unit() > 1 ? 64 : 128)) break;
    for (int units : {1, 2, 4}) {
      // Slots of one unit keep the thread that copies too busy, unless tokens are many.
      const bool sensible = tokens > 64 ? units <= 2 : units >= 2 || layout.steps() % 2 != 0;
      if (layout.steps() % units != 0 || !sensible) continue;
      if (units * layout.sums_of_unit() > kMostScales) break;
      for (int blocks = 1; blocks <= (tokens <= kFewTokens ? 2 : 1); ++blocks) {
        add_shapes(layout, rows, overlaps, gpu,
                   {.tokens = tokens, .units = units, .depth = layout.depth(), .blocks = blocks},
                   shapes);
      }
    }
  }
  add_few_token_shapes(layout, rows, overlaps, gpu, Tokens::kFetched, shapes);
  if (rows == 1 && (layout.can_sum_blocks() || !overlaps) &&
      layout.k <= (overlaps ? kLongestKept : kLongestRead)) {
    add_few_token_shapes(layout, rows, overlaps, gpu, Tokens::kKept, shapes);
  }
  std::ranges::stable_sort(shapes, {}, &PipelinedShape::microseconds);
  return shapes;
}

std::vector<PipelinedShape> rank_keeping_shapes(const FragmentLayout& layout, int64_t rows,
                                                const codegen::GpuTarget& gpu) {
  std::vector<PipelinedShape> shapes;
  if (rows < 1 || rows > kMostKept || layout.k > kLongestKept ||
      rows * layout.row_terms * layout.k * 2 > kMostKeptBytes) {
    return shapes;
  }
  add_few_token_shapes(layout, rows, /*overlaps=*/false, gpu, Tokens::kComputed, shapes);
  std::ranges::stable_sort(shapes, {}, &PipelinedShape::microseconds);
  return shapes;
}

std::vector<int64_t> row_buckets(const Dim& rows) {
  if (rows.is_constant()) return {rows.value()};
  return {1, 8, 16, 32, 64, 256, 1024, 4096};
}

}  // namespace tenon::kernels
