// Which tile, how many slots and splits: from bytes and products, before anything is compiled.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "kernels/llvm/scaled_dot/pipelined_dot.h"

namespace tenon::kernels {
namespace {

// What one multiprocessor does in a microsecond, as measured on an H200: bytes from memory and from
// the second cache level, products, weights decoded.
constexpr double kBytes = 32'000, kCachedBytes = 60'000, kProducts = 3.0e6, kDecoded = 55'000;
// Microseconds: to begin a tile and store it, to begin a kernel, to add up one more split.
constexpr double kPerTile = 0.8, kPerKernel = 2.0, kPerSplit = 0.25;

constexpr int64_t kEpilogueBytes = 24 << 10;
constexpr int kMostSlots = 8;

int64_t slot_bytes(const FragmentLayout& layout, int tokens, int units) {
  return int64_t{units} * (layout.unit_words() * 4 + tokens * kFragmentDepth * 2);
}

// Few tokens are few products for a step: take several at once, or the waiting costs more.
int units_for(const FragmentLayout& layout, int tokens) {
  int units = tokens <= 16 ? 4 : tokens <= 64 ? 2 : 1;
  while (layout.steps() % units != 0) units /= 2;
  return units;
}

double estimate(const FragmentLayout& layout, int64_t rows, const PipelinedShape& shape,
                int multiprocessors) {
  const auto ceil_of = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t tiles = ceil_of(rows, shape.tokens) * layout.row_units();
  const auto waves = static_cast<double>(ceil_of(tiles * shape.splits, multiprocessors));
  const auto steps = static_cast<double>(ceil_of(layout.steps(), shape.splits));
  const double unit = kFragmentRows * kFragmentDepth;
  const double decoding = layout.is_plain() ? 0 : unit / kDecoded;
  const double step =
      std::max({layout.unit_words() * 4 / kBytes, shape.tokens * kFragmentDepth * 2 / kCachedBytes,
                unit * shape.tokens / kProducts, decoding});
  const auto splits = static_cast<double>(shape.splits);
  return kPerKernel + waves * (steps * step + kPerTile) +
         (shape.splits > 1 ? 1 + kPerSplit * splits * shape.tokens / 8 : 0);
}

}  // namespace

std::string PipelinedShape::text() const {
  return fmt::format("128x{} tokens, {} slots of {} k, {} splits, {:.1f} us expected", tokens,
                     slots, units * kFragmentDepth, splits, microseconds);
}

std::vector<PipelinedShape> rank_shapes(const FragmentLayout& layout, int64_t rows,
                                        const codegen::GpuTarget& gpu) {
  std::vector<PipelinedShape> shapes;
  for (int tokens : {8, 16, 32, 64, 128, 256}) {
    if (tokens > 8 && tokens / 2 >= rows) break;
    PipelinedShape shape{tokens, units_for(layout, tokens), 0};
    const int64_t room = gpu.shared_bytes - kEpilogueBytes;
    shape.slots = static_cast<int>(
        std::min<int64_t>(kMostSlots, room / slot_bytes(layout, tokens, shape.units)));
    if (shape.slots < 2) continue;
    const int64_t steps = layout.steps() / shape.units;
    for (int64_t splits = 1; splits <= 16 && splits <= steps; ++splits) {
      // Every split has work.
      const int64_t share = (steps + splits - 1) / splits;
      if ((steps + share - 1) / share != splits) continue;
      shape.splits = splits;
      shape.microseconds = estimate(layout, rows, shape, gpu.multiprocessors);
      shapes.push_back(shape);
    }
  }
  std::ranges::stable_sort(shapes, {}, &PipelinedShape::microseconds);
  return shapes;
}

std::vector<int64_t> row_buckets(const Dim& rows) {
  if (rows.is_constant()) return {rows.value()};
  return {8, 16, 32, 64, 256, 1024, 4096};
}

}  // namespace tenon::kernels
