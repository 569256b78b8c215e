// Types, shapes, dominance and region rules of ir.h.
#pragma once

#include <span>

#include "base/support.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

Support verify(const Kernel& kernel);

// Operand and result types of one operation; `types` holds the type of every value. Regions are not
// looked into.
Support check_types(const Operation& operation, const Types& types);

// "f32[16]", "index", "buffer<u8>".
std::string text(const Type& type);

}  // namespace tenon::codegen
