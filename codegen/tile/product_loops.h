// Loops of products that kernels may share: what comes before and behind them differs (another
// number of columns, a bias, an activation), and they are most of what there is to compile.
#pragma once

#include <vector>

#include "codegen/tile/ir.h"

namespace tenon::codegen {

struct ProductLoop {
  const Operation* loop = nullptr;  // in the kernel that it was found in
  Kernel kernel = {};  // the loop by itself; what it took from around it, as parameters
  std::vector<ValueId> arguments = {};  // which values of the kernel around it these are
};

// The outermost ones that carry nothing and take only indices and buffers from around them.
std::vector<ProductLoop> product_loops(const Kernel& kernel);

}  // namespace tenon::codegen
