// The launches of pack kernels that make the units of all sections, or their sides that stand
// apart, from what the model stores.
#pragma once

#include "kernels/llvm/scaled_dot/dot_sections.h"
#include "kernels/planning/device_packing.h"

namespace tenon::kernels {

// Weights whose rows are stored one by one are cut into pieces of about this many bytes.
inline constexpr size_t kPackedPieceBytes = size_t{32} << 20;

// Without pieces where the host packs, because no kernel reads such scales or the weight is too
// large for its indices.
DevicePacking pack_units_on_device(const ir::Graph& graph, const DotSections& dots,
                                   size_t piece_bytes = kPackedPieceBytes);
DevicePacking pack_sides_on_device(const ir::Graph& graph, const DotSections& dots,
                                   size_t piece_bytes = kPackedPieceBytes);

}  // namespace tenon::kernels
