// Casts and block scales, shared by the quantisers, the dots and the gathers.
#pragma once

#include <string_view>

#include "base/convert.h"
#include "kernels/reference/op.h"

namespace tenon::kernels::reference {

// A float as a kernel holds it when it decides something by it (rounding, truncation): the reals of
// f16, bf16 and f32 values come rounded to f32.
double as_held(DType dtype, double value);

ReferenceTensor cast(const ReferenceTensor& x, DType to, EncodeRule rule = {});
// The same codes under another type of the same width.
ReferenceTensor reinterpret(const ReferenceTensor& x, DType to);
// ONNX's number of an element type, as attributes name it.
DType onnx_element_type(int64_t number);

// Where the scale of an element of x stands: for a scalar, one per index of `axis`, or one per
// `block` of it.
class ScaleIndex {
 public:
  ScaleIndex(const Dims& x_dims, const Dims& scale_dims, int64_t axis, int64_t block);
  int64_t at(const Index& x_index) const;

 private:
  Dims scale_dims_;
  size_t axis_ = 0;
  int64_t block_ = 0;
  bool scalar_ = false;
};

}  // namespace tenon::kernels::reference
