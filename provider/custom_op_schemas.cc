#include "provider/custom_op_schemas.h"

#include <algorithm>

namespace tenon::provider {
namespace {

constexpr ElementType kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr ElementType kHalf = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
constexpr ElementType kBFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
constexpr ElementType kByte = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
constexpr ElementType kInt8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
constexpr ElementType kInt4 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4;
constexpr ElementType kUInt4 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4;
constexpr ElementType kFp4 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1;
constexpr ElementType kFp8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN;
constexpr ElementType kE8M0 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0;

constexpr ElementType kWide[] = {kFloat, kHalf, kBFloat};

using Rows = std::vector<Schema>;

// Codes of one type, and the zero point's type beside them.
struct Codes {
  ElementType codes, zero;
};

// (x, scale, zero point?) -> codes; scale and x may differ, as after a conversion of one of them.
void add_quantizer(Rows& rows, const char* name, const std::vector<Codes>& made,
                   OutputType rule = OutputType::kListed) {
  for (const auto& [codes, zero] : made) {
    for (const ElementType x : kWide) {
      for (const ElementType scale : kWide) {
        rows.push_back({name, {x, scale, zero}, {{codes, OutputShape::kSame, rule}}, 2});
      }
    }
  }
}

// (codes, scale, zero point?) -> floats of the scale's type.
void add_dequantizer(Rows& rows, const char* name, const std::vector<Codes>& read) {
  for (const auto& [codes, zero] : read) {
    for (const ElementType scale : kWide) {
      rows.push_back(
          {name, {codes, scale, zero}, {{scale, OutputShape::kSame, OutputType::kNamed}}, 2});
    }
  }
}

// Those that find their scales themselves.
void add_dynamic_quantizers(Rows& rows) {
  const Output fp4_scales{kFp8, OutputShape::kBlocks, OutputType::kListed, 16};
  const Output fp8_scales{kByte, OutputShape::kBlocks, OutputType::kListed, 32};
  for (const ElementType x : kWide) {
    for (const ElementType scale : kWide) {
      rows.push_back({"TRT_FP4DynamicQuantize", {x, scale}, {{kFp4}, fp4_scales}, 2});
    }
    rows.push_back({"TRT_MXFP8DynamicQuantize", {x}, {{kFp8}, fp8_scales}, 1});
    rows.push_back({"TRT_FP4QDQ", {x}, {{x, OutputShape::kSame}}, 1});
  }
}

}  // namespace

std::vector<Schema> trt_schemas() {
  Rows rows;
  add_dynamic_quantizers(rows);
  for (const ElementType scale : {kByte, kE8M0}) {
    rows.push_back({"TRT_MXFP8DequantizeLinear",
                    {kFp8, scale},
                    {{kAnyType, OutputShape::kSame, OutputType::kNamed}},
                    2});
  }
  const Codes fp8_as_bytes{kByte, kFp8}, bytes{kByte, kByte}, fp8{kFp8, kFp8};
  const Codes int8{kInt8, kInt8}, int4{kInt4, kInt4}, uint4{kUInt4, kUInt4};
  add_quantizer(rows, "QuantizeLinear", {bytes, fp8_as_bytes, int8, int4, uint4},
                OutputType::kNamed);
  add_quantizer(rows, "TRT_FP8QuantizeLinear", {fp8_as_bytes});
  add_quantizer(rows, "TRT_INT8QuantizeLinear", {int8});
  add_quantizer(rows, "TRT_INT4QuantizeLinear", {int4, uint4});
  add_dequantizer(rows, "DequantizeLinear", {bytes, fp8_as_bytes, fp8, int8, int4, uint4});
  add_dequantizer(rows, "TRT_FP8DequantizeLinear", {fp8_as_bytes, fp8});
  add_dequantizer(rows, "TRT_INT8DequantizeLinear", {int8});
  add_dequantizer(rows, "TRT_INT4DequantizeLinear", {int4, uint4});
  return rows;
}

// ONNX Runtime's own, which it only knows where it was built with NCCL.
std::vector<Schema> collective_schemas() {
  constexpr auto kType = OutputType::kAsFirstInput;
  return {
      {"AllReduce", {kAnyType}, {{kAnyType, OutputShape::kSame, kType}}, 1},
      {"AllGather", {kAnyType}, {{kAnyType, OutputShape::kGathered, kType}}, 1},
      {"AllToAll", {kAnyType}, {{kAnyType, OutputShape::kSame, kType}}, 1},
  };
}

bool may_be_named(int64_t onnx_type) {
  constexpr ElementType kNamed[] = {kFloat, kHalf, kBFloat, kByte, kInt8, kInt4, kUInt4, kFp8};
  return std::ranges::find(kNamed, onnx_type) != std::end(kNamed);
}

bool makes_fp8_codes(std::string_view op, DType zero_point) {
  return op == "trt::TRT_FP8QuantizeLinear" ||
         (op == "trt::QuantizeLinear" && zero_point == DType::kF8E4M3FN);
}

}  // namespace tenon::provider
