// What the runtime knows of a value: element type and shape, as we name them.
#pragma once

#include <onnxruntime_c_api.h>

#include <optional>

#include "base/dtype.h"
#include "base/shape.h"

namespace tenon::provider {

struct TensorInfo {
  DType dtype = DType::kUndefined;  // also of what is no tensor
  std::optional<Shape> shape;       // nullopt: not even the rank is known
};

TensorInfo tensor_info(const OrtValueInfo& info);
// As the runtime spells it; UNDEFINED of what is no tensor.
ONNXTensorElementDataType element_type(const OrtValueInfo& info);
DType dtype_of(ONNXTensorElementDataType type);

}  // namespace tenon::provider
