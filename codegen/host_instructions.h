// Which of a CPU's instructions an operation becomes, where reports and emitters must agree.
#pragma once

#include "codegen/target.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

// smmla takes two rows by two columns, eight k of each: a register of four sums in row-major order.
inline bool multiplies_byte_matrices(const Kernel& kernel, const Operation& operation,
                                     const HostTarget& host) {
  if (operation.op != Op::kDotI8 || !host.has("i8mm")) return false;
  if (kernel.types[operation.operands[2]].dtype != DType::kI8) return false;
  const std::vector<int>& sums = kernel.types[operation.operands[0]].shape;
  return sums == std::vector{2, 2} && kernel.types[operation.operands[1]].shape[1] % 8 == 0;
}

}  // namespace tenon::codegen
