// Parts of constants. A run of whole rows is a view of the same bytes; anything else copies the
// part and no more. Where a text left the bytes out there is nothing to copy: the part stands for
// them too.
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/sharding/cut.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::distributed {

// A tensor as rows of elements of `bits` each. Rows may be longer than their elements, and may
// begin within a byte.
struct Rows {
  int64_t rows = 0, columns = 0;
  int bits = 0;
  int64_t row_bits = 0;
};

// Those rows and columns. `row_bits` is the length of a row of the part; `dims` and the tensor's
// type say how many bytes it has.
ir::TensorPtr take(const ir::Tensor& tensor, const Rows& from, const Pieces& rows,
                   const Pieces& columns, int64_t row_bits, std::vector<int64_t> dims);

// Of a dim of a tensor whose elements follow each other.
ir::TensorPtr take(const ir::Tensor& tensor, size_t axis, const Pieces& pieces);

}  // namespace tenon::distributed
