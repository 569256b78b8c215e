// Tensors of attention heads in the layouts that ops use, as [B, H, S, D] and back.
#pragma once

#include <string_view>

#include "kernels/reference/op.h"

namespace tenon::kernels::reference {

// Layouts: "bhsd", "bshd", "bhds", and "bs(hd)" for heads packed in the last of three dims.
ReferenceTensor to_heads(const ReferenceTensor& x, std::string_view layout, int64_t heads);
ReferenceTensor from_heads(const ReferenceTensor& x, std::string_view layout);

}  // namespace tenon::kernels::reference
