// Types, shapes, dominance and region rules of ir.h.
#pragma once

#include "base/support.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

Support verify(const Kernel& kernel);

}  // namespace tenon::codegen
