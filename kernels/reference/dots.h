// The dot on plain doubles, and the operands of a ScaledDot made plain.
#pragma once

#include "kernels/reference/op.h"

namespace tenon::kernels::reference {

// One side of a dot, dequantised: [batch..., rows, k], whatever the layout in memory.
struct DotOperand {
  Dims batch;
  int64_t rows = 0, k = 0;
  std::vector<double> real;
};

struct DotOperands {
  DotOperand a, b;
};

// Dequantises both sides of a tenon::ScaledDot node.
DotOperands scaled_dot_operands(const Call& call);

// [batch..., a.rows, b.rows], the batches broadcast.
ReferenceTensor dot(const DotOperand& a, const DotOperand& b, DType result);

}  // namespace tenon::kernels::reference
