// Types and shapes of the ops that exporters write and stock ONNX Runtime has no schema for.
// docs/formats.md has the same as a table.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace tenon::provider {

using ElementType = ONNXTensorElementDataType;
// Of an input: any type. Of an output: f32, or what `rule` says.
inline constexpr ElementType kAnyType = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;

// How a dim of an output follows from the first input's.
enum class OutputShape {
  kSame,
  kBlocks,    // last dim divided by block_size
  kGathered,  // dim `axis` times group_size
};

enum class OutputType {
  kListed,
  kNamed,         // by the attribute output_dtype, else as listed
  kAsFirstInput,  // whatever that is
};

struct Output {
  ElementType type;
  OutputShape shape = OutputShape::kSame;
  OutputType rule = OutputType::kListed;
  int64_t block = 0;  // where there is no block_size
};

// Several rows of one name are alternatives by input type; the first is taken that fits what is
// given, so the first of those with an optional input says what its absence means.
struct Schema {
  const char* name;
  std::vector<ElementType> inputs;
  std::vector<Output> outputs;
  size_t required;  // so many inputs
};

std::vector<Schema> trt_schemas();
std::vector<Schema> collective_schemas();

// Types that output_dtype may name: their ONNX numbers are the runtime's.
bool may_be_named(int64_t onnx_type);

// torch's exporter declares the FP8 codes of TensorRT's quantisers as uint8, and TensorRT looks at
// the op alone. So does the schema, for a declaration that differs from it fails the load: true
// where a result of uint8 is such codes.
bool makes_fp8_codes(std::string_view op, DType zero_point);

}  // namespace tenon::provider
