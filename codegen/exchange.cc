#include "codegen/exchange.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "codegen/linear_map.h"

namespace tenon::codegen {

namespace {

int bytes_of(DType dtype) { return (bit_width(dtype) + 7) / 8; }

// Vectors wider than this are several accesses.
int access_bytes(int width, int element_bytes) {
  return std::min(width * element_bytes, kAccessBytes);
}

}  // namespace

int exchange_width(const Type& tile, const Layout& layout, int pitch, int first_column) {
  int columns = tile.shape.empty() ? 1 : tile.shape.back();
  int width = layout.kind == Layout::Kind::kDealt ? layout.run
              : layout.is_bits()                  ? layout.neighbours()
              : layout.is_mma()                   ? 2
                                                  : 1;
  if (columns % width != 0) return 1;
  // Each vector must lie at a multiple of its own size.
  bool one_row = tile.shape.size() < 2 || tile.shape[0] == 1;
  while ((!one_row && pitch % width != 0) || first_column % width != 0) width /= 2;
  return width;
}

int64_t exchange_price(const Type& tile, const Layout& from, const Layout& to,
                       const std::function<int64_t(int64_t)>& source_of, int pitch) {
  int columns = tile.shape.empty() ? 1 : tile.shape.back(), element = bytes_of(tile.dtype);
  auto address = [&](int64_t source) {
    return (source / columns * pitch + source % columns) * element;
  };
  int64_t total = 0;
  // One access of a warp, by its register; lanes that hold nothing there stay away.
  auto add = [&](const Layout& layout, int reg, int bytes, const auto& source) {
    std::vector<int64_t> addresses;
    for (int lane = 0; lane < kWarp; ++lane) {
      int64_t held = layout.element_of(lane, reg);
      if (held >= 0) addresses.push_back(address(source(held)));
    }
    if (!addresses.empty()) total += 1 + wavefronts(addresses, bytes);
  };
  int bytes = access_bytes(exchange_width(tile, from, pitch, 0), element);
  for (int reg = 0; reg < from.registers(); reg += std::max(1, bytes / element)) {
    add(from, reg, bytes, [](int64_t held) { return held; });
  }
  for (int reg = 0; reg < to.registers(); ++reg) add(to, reg, element, source_of);
  return total;
}

int exchange_pitch(const Type& tile, const Layout& from, const Layout& to,
                   const std::function<int64_t(int64_t)>& source_of) {
  int columns = tile.shape.back();
  if (tile.shape.size() < 2 || tile.shape[0] == 1) return columns;
  int64_t least = std::numeric_limits<int64_t>::max();
  int best = columns;
  for (int padding : {0, kBankBytes, 2 * kBankBytes, kAccessBytes}) {
    int pitch = columns + padding / bytes_of(tile.dtype);
    int64_t price = exchange_price(tile, from, to, source_of, pitch);
    if (price >= least) continue;
    least = price;
    best = pitch;
  }
  return best;
}

}  // namespace tenon::codegen
