#include "kernels/llvm/scaled_dot/scale_tiles.h"

#include "kernels/llvm/launch_writer.h"

namespace tenon::kernels {
namespace {

using codegen::ValueId;

constexpr int kRows = 128, kBlocks = 4, kRowsAtOnce = 32;
constexpr int64_t kTileBytes = kRows * kBlocks;

int64_t tiles_across(int64_t blocks) { return (blocks + kBlocks - 1) / kBlocks; }
Dim tile_count(const Dim& rows, int64_t blocks) {
  return ceil_div(rows, kRows) * tiles_across(blocks);
}

}  // namespace

Dim scale_tiles_bytes(const Dim& rows, int64_t blocks) {
  return tile_count(rows, blocks) * kTileBytes;
}

Launch scale_tiles_launch(BufferArgument scales, const Dim& rows, int64_t blocks,
                          BufferArgument tiles) {
  LaunchWriter writer("scale_tiles");
  codegen::Builder& b = writer.builder;
  const ValueId from = writer.buffer("scales", DType::kU8, scales);
  const ValueId to = writer.buffer("tiles", DType::kU8, tiles);
  writer.declare(rows);
  const ValueId across = b.index(tiles_across(blocks));
  const ValueId first_row = b.mul({b.div(b.task(), across), b.index(kRows)});
  const ValueId block = b.mul({b.rem(b.task(), across), b.index(kBlocks)});
  const ValueId blocks_left =
      blocks % kBlocks == 0 ? codegen::kNone : b.sub(b.index(blocks), block);
  b.loop({b.index(0), b.index(kRows), b.index(kRowsAtOnce)}, {}, [&](ValueId part, auto) {
    const ValueId row = b.add(first_row, part);
    const ValueId rows_left = b.max({b.index(0), b.sub(writer.index(rows), row)});
    const ValueId codes = b.load({from,
                                  b.add(b.mul(row, b.index(blocks)), block),
                                  {b.index(blocks), b.index(1)},
                                  {rows_left, blocks_left}},
                                 {kRowsAtOnce, kBlocks});
    const ValueId at = b.add({b.mul({b.task(), b.index(kTileBytes)}),
                              b.mul({b.div(part, b.index(kRowsAtOnce)), b.index(kBlocks)})});
    b.store({to, at, {b.index(kBlocks * kBlocks), b.index(1)}, {codegen::kNone, codegen::kNone}},
            codes);
    return std::vector<ValueId>{};
  });
  Launch launch = writer.finish(tile_count(rows, blocks), kTileBytes / 8);
  launch.threads = 32;
  return launch;
}

}  // namespace tenon::kernels
