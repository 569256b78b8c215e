// What GEMMs of the host share around their products. One task computes a block of rows of one
// panel of columns:
//
//   sums = 0                          clear_sums
//   for kc in K by k_block:           for_k_blocks
//     for each micro tile of rows     for_micro_tiles
//   epilogue(sums)                    store_panel_rows
#pragma once

#include <functional>
#include <vector>

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/scaled_dot/epilogue.h"

namespace tenon::kernels {

struct PanelTask {
  codegen::ValueId panel = codegen::kNone;
  codegen::ValueId first_row = codegen::kNone, rows = codegen::kNone;
};

// Tasks that follow each other take the panels of the same rows. `rows` must be declared.
PanelTask locate_panel_task(LaunchWriter& writer, int64_t panels, int64_t row_block,
                            const Dim& rows);

// `lines` lines of `width` f32 numbers become 0.
void clear_sums(codegen::Builder& b, codegen::ValueId sums, int width, codegen::ValueId lines);

// The last block may be shorter than `k_block`.
using KBlockBody = std::function<void(codegen::ValueId kc, codegen::ValueId count)>;
void for_k_blocks(codegen::Builder& b, codegen::ValueId k, int64_t k_block, const KBlockBody& body);

// The first height as often as it fits into `rows`, then the smaller ones (MicroTile::heights).
using MicroTileBody = std::function<void(codegen::ValueId row, int height)>;
void for_micro_tiles(codegen::Builder& b, const std::vector<int>& heights, codegen::ValueId rows,
                     const MicroTileBody& body);

// Where panels of `columns` columns meet a result of `n`, which must be declared.
struct PanelColumns {
  int columns = 0;
  Dim n;
};
// `sums_of` gives the sums of a row of the task.
using RowSums = std::function<Tile(codegen::ValueId row)>;
void store_panel_rows(LaunchWriter& writer, const PanelTask& task, const PanelColumns& panels,
                      Epilogue& epilogue, const RowSums& sums_of);

}  // namespace tenon::kernels
