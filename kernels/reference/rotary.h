// Rotary embedding of one head, shared by the rotary ops and the attentions that rotate inside.
#pragma once

#include "kernels/reference/op.h"

namespace tenon::kernels::reference {

// x is [B, H, S, D]; angles(b, s) is the row of the cosine and sine tables.
template <typename AngleRow>
ReferenceTensor rotate_heads(const ReferenceTensor& x, const ReferenceTensor& cos,
                             const ReferenceTensor& sin, int64_t width, bool interleaved,
                             AngleRow angle_row) {
  const int64_t half = width / 2;
  ReferenceTensor y = x;
  for_each_index(x.dims, [&](const Index& index, int64_t flat) {
    const int64_t d = index[3];
    if (d >= width) return;
    const bool first = interleaved ? d % 2 == 0 : d < half;
    const int64_t angle = angle_row(index[0], index[2]) * half + (interleaved ? d / 2 : d % half);
    const int64_t other = interleaved ? (first ? 1 : -1) : (first ? half : -half);
    const double partner = x.number(flat + other) * sin.number(angle);
    y.set(flat, x.number(flat) * cos.number(angle) + (first ? -partner : partner));
  });
  return y;
}

}  // namespace tenon::kernels::reference
