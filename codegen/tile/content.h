// What tells kernels apart: equal ones are compiled once.
#pragma once

#include <cstddef>

#include "base/hash.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

// Of all that a kernel's text says (text.h) but for its name: kernels of one text have one content,
// whatever numbers their values have. Found without the text, which takes ten times as long.
Digest content_of(const Kernel& kernel);

// How many operations it has, inner regions included: about what compiling it costs.
size_t operation_count(const Kernel& kernel);

}  // namespace tenon::codegen
