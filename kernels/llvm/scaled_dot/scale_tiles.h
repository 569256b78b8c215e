// Scales that a Run brings, one row after the other, brought into tiles of 128 rows and 4 blocks as
// block-scaled products of libraries read them. A task makes one tile of 512 bytes:
// [row % 32][row / 32][block].
#pragma once

#include "kernels/planning/lowered.h"

namespace tenon::kernels {

// `scales`: [rows, blocks] of bytes. What fills up the last tiles is 0.
Launch scale_tiles_launch(BufferArgument scales, const Dim& rows, int64_t blocks,
                          BufferArgument tiles);
Dim scale_tiles_bytes(const Dim& rows, int64_t blocks);

}  // namespace tenon::kernels
