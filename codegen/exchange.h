// How a tile passes shared memory on its way from one layout to another.
#pragma once

#include <cstdint>
#include <functional>

#include "codegen/layouts.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

// Elements from one row to the next such that the banks are asked as few times as possible: written
// as `from` lies, in vectors where rows allow them, and read element by element as `to` lies.
// source_of: which element of the tile an element of the result is.
int exchange_pitch(const Type& tile, const Layout& from, const Layout& to,
                   const std::function<int64_t(int64_t)>& source_of);

// What that costs a warp with a given pitch: each write and read, and the wavefronts of it.
int64_t exchange_price(const Type& tile, const Layout& from, const Layout& to,
                       const std::function<int64_t(int64_t)>& source_of, int pitch);

// Neighbours in a row that one vector takes to a row in shared memory of this pitch, beginning at
// `first_column` of it.
int exchange_width(const Type& tile, const Layout& layout, int pitch, int first_column);

}  // namespace tenon::codegen
