// Tensors of the judge: floats are kept as doubles, as computed, and never rounded to their own
// type unless an op asks for it (Cast, Quantize).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/convert.h"
#include "base/dtype.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::kernels::reference {

struct ReferenceTensor {
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  std::vector<double> reals;      // elements of a float type
  std::vector<int64_t> integers;  // elements of an integer type or bool

  static ReferenceTensor zeros(DType dtype, std::vector<int64_t> dims);
  static ReferenceTensor of(DType dtype, std::vector<int64_t> dims,
                            const std::vector<double>& values);
  static ReferenceTensor from_bytes(DType dtype, std::vector<int64_t> dims, const void* data);
  static ReferenceTensor from(const ir::Tensor& tensor);

  int64_t elements() const;
  bool is_real() const { return is_floating(dtype); }
  double number(int64_t index) const;
  // Integers wrap to the type's width; reals are kept as they come.
  void set(int64_t index, double value);
  void set_integer(int64_t index, int64_t value);
  void copy_element(int64_t index, const ReferenceTensor& from, int64_t from_index);

  // Packed as in memory; reals are rounded to the type here.
  std::vector<std::byte> bytes() const;
  ReferenceTensor rounded() const;
};

int64_t element_count(const std::vector<int64_t>& dims);
// Two's complement in the width of `dtype`.
int64_t wrap_integer(DType dtype, int64_t value);

}  // namespace tenon::kernels::reference
