#include "provider/tensor_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "provider/api.h"
#include "provider/node_names.h"

namespace tenon::provider {
namespace {

const OrtApi& api() { return *runtime().api; }

// A model's name as a symbol, different names as different ones: "batch size" and "2*n" are legal
// in ONNX. Line ends and the like are written %XX, and what tells our own symbols from a model's.
std::string symbol_name(std::string_view raw) {
  std::string name;
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::iscntrl(byte) || c == '%' || c == ':') {
      name += fmt::format("%{:02x}", byte);
    } else {
      name += c;
    }
  }
  return name;
}

// Paddle's exporter calls each size that it does not know "?": no letter, no digit, no name.
bool is_a_name(std::string_view raw) {
  return std::ranges::any_of(raw, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return std::isalnum(byte) || byte >= 0x80;
  });
}

// An unknown dim without a name is like no other; no name has a colon.
std::string unnamed_symbol(std::string_view value, size_t axis) {
  return fmt::format("{}:{}", symbol_name(value), axis);
}

// Null: it is no tensor.
const OrtTensorTypeAndShapeInfo* tensor_of(const OrtValueInfo& info) {
  const OrtTypeInfo* type = nullptr;
  check(api().GetValueInfoTypeInfo(&info, &type));
  ONNXType kind = ONNX_TYPE_UNKNOWN;
  if (type == nullptr) return nullptr;
  check(api().GetOnnxTypeFromTypeInfo(type, &kind));
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  if (kind == ONNX_TYPE_TENSOR) check(api().CastTypeInfoToTensorInfo(type, &tensor));
  return tensor;
}

}  // namespace

ONNXTensorElementDataType element_type(const OrtValueInfo& info) {
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  const OrtTensorTypeAndShapeInfo* tensor = tensor_of(info);
  if (tensor != nullptr) check(api().GetTensorElementType(tensor, &element));
  return element;
}

TensorInfo tensor_info(const OrtValueInfo& info) {
  const OrtTensorTypeAndShapeInfo* tensor = tensor_of(info);
  if (tensor == nullptr) return {};
  TensorInfo result;
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  check(api().GetTensorElementType(tensor, &element));
  result.dtype = dtype_of(element);
  if (!api().TensorTypeAndShape_HasShape(tensor)) return result;

  size_t rank = 0;
  check(api().GetDimensionsCount(tensor, &rank));
  std::vector<int64_t> dims(rank);
  std::vector<const char*> names(rank);
  if (rank > 0) {
    check(api().GetDimensions(tensor, dims.data(), rank));
    check(api().GetSymbolicDimensions(tensor, names.data(), rank));
  }
  Shape shape;
  for (size_t axis = 0; axis < rank; ++axis) {
    const std::string_view name = names[axis] == nullptr ? "" : names[axis];
    if (dims[axis] >= 0) {
      shape.emplace_back(dims[axis]);
    } else if (is_a_name(name)) {
      shape.push_back(Dim::symbol(symbol_name(name)));
    } else {
      shape.push_back(Dim::symbol(unnamed_symbol(name_of_value(info), axis)));
    }
  }
  result.shape = std::move(shape);
  return result;
}

DType dtype_of(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return DType::kF32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return DType::kU8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
      return DType::kI8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16:
      return DType::kU16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16:
      return DType::kI16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return DType::kI32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return DType::kI64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING:
      return DType::kString;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
      return DType::kBool;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return DType::kF16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return DType::kF64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32:
      return DType::kU32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64:
      return DType::kU64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return DType::kBF16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN:
      return DType::kF8E4M3FN;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ:
      return DType::kF8E4M3FNUZ;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2:
      return DType::kF8E5M2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ:
      return DType::kF8E5M2FNUZ;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4:
      return DType::kU4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4:
      return DType::kI4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1:
      return DType::kF4E2M1;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2:
      return DType::kU2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2:
      return DType::kI2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0:
      return DType::kF8E8M0;
    default:
      return DType::kUndefined;
  }
}

}  // namespace tenon::provider
