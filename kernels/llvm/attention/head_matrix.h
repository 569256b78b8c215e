// Keys or values of all heads as one matrix of rows, as TMA loads see it: one head below the other
// where rows of a head follow each other, else side by side.
#pragma once

#include <vector>

#include "kernels/llvm/attention/key_cache.h"
#include "kernels/llvm/launch_writer.h"

namespace tenon::kernels {

// A head is fetched in parts whose rows have 128, 64 or 32 bytes of 16-bit elements.
struct HeadColumns {
  int first, width;
};
inline std::vector<HeadColumns> head_columns(int64_t depth) {
  std::vector<HeadColumns> parts;
  int first = 0;
  for (const int width : {64, 32, 16}) {
    for (; first + width <= depth; first += width) parts.push_back({first, width});
  }
  return parts;
}

class HeadMatrix {
 public:
  // Adds the buffer's parameter.
  HeadMatrix(LaunchWriter& writer, const char* name, DType type, const HeadRows& rows,
             const AttentionProblem& problem, int64_t depth)
      : buffer_(writer.buffer(name, type, rows.buffer)), stride_(rows.strides.row) {
    const int64_t all = problem.attention.kv_heads * depth;
    const bool side_by_side = stride_.is(all) && rows.strides.head.is(depth);
    columns_ = side_by_side ? all : depth;
    head_columns_ = side_by_side ? depth : 0;
    if (!side_by_side) head_rows_ = ceil_div(rows.strides.head, stride_);
    batch_rows_ = ceil_div(rows.strides.batch, stride_);
    rows_ = problem.batch * batch_rows_;
  }

  void declare(LaunchWriter& writer) const {
    for (const Dim& dim : {rows_, stride_, head_rows_, batch_rows_}) writer.declare(dim);
  }
  codegen::Builder::Matrix matrix(LaunchWriter& writer) const {
    return {buffer_, writer.index(rows_), writer.builder.index(columns_), writer.index(stride_)};
  }
  // Where a head begins.
  codegen::ValueId row(LaunchWriter& writer, codegen::ValueId batch, codegen::ValueId head) const {
    codegen::Builder& b = writer.builder;
    return b.add({b.mul(batch, writer.index(batch_rows_)), b.mul(head, writer.index(head_rows_))});
  }
  codegen::ValueId column(LaunchWriter& writer, codegen::ValueId head) const {
    codegen::Builder& b = writer.builder;
    return b.mul(head, b.index(head_columns_));
  }

 private:
  codegen::ValueId buffer_;
  Dim stride_, rows_, head_rows_ = 0, batch_rows_ = 0;
  int64_t columns_, head_columns_;
};

}  // namespace tenon::kernels
