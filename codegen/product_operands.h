// What products read without having it in registers first.
#pragma once

#include <set>
#include <vector>

#include "codegen/layouts.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

// Where the elements of an operand of mma.sync come from: tiles side by side, or one; turned: they
// hold the operand transposed.
struct ProductOperand {
  struct Part {
    ValueId id;
    int row, column;  // where it begins
  };
  std::vector<Part> parts;
  bool turned = false;
};
ProductOperand product_operand(const Kernel& kernel,
                               const std::vector<const Operation*>& definitions, ValueId id);

// Transposes and concatenations that products alone look through, and memory that they alone read:
// stages, rows of scratch.
std::set<const Operation*> folded_into_products(const Kernel& kernel,
                                                const std::vector<const Operation*>& definitions,
                                                int threads);

// Rings that tf32 products read, and nothing else: what is copied there may be rounded on its way.
std::set<ValueId> rings_of_tf32(const Kernel& kernel);

}  // namespace tenon::codegen
