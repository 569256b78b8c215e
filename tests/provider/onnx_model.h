// Writes ONNX models as bytes, with no help from the onnx library: a test states every field of a
// model, right or wrong, and stays readable.
#pragma once

#include <onnxruntime_c_api.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tenon::testing {

using Type = ONNXTensorElementDataType;
inline constexpr Type kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
inline constexpr Type kHalf = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
inline constexpr Type kBFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
inline constexpr Type kByte = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
inline constexpr Type kInt8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
inline constexpr Type kInt4 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4;
inline constexpr Type kInt64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
inline constexpr Type kBool = ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
inline constexpr Type kString = ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
inline constexpr Type kFp4 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1;
inline constexpr Type kFp8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN;
inline constexpr Type kE8M0 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0;

// An element type and packed bytes, as a TensorProto's raw_data and an OrtValue have them.
struct Tensor {
  Type type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<int64_t> dims;
  std::string bytes;

  int64_t elements() const;
  const float* floats() const { return reinterpret_cast<const float*>(bytes.data()); }
  float at(size_t index) const { return floats()[index]; }
};

Tensor floats(std::vector<int64_t> dims, const std::vector<float>& values);
Tensor filled(std::vector<int64_t> dims, float value);
Tensor int64s(std::vector<int64_t> dims, const std::vector<int64_t>& values);
Tensor bools(std::vector<int64_t> dims, const std::vector<bool>& values);

// 8 or "batch".
struct Dim {
  Dim(int value) : size(value) {}
  Dim(int64_t value) : size(value) {}
  Dim(const char* name) : size(std::string(name)) {}
  std::variant<int64_t, std::string> size;
};

class Graph;

using AttributeValue =
    std::variant<int64_t, float, std::string, std::vector<int64_t>, Tensor, const Graph*>;
struct Attribute {
  Attribute(std::string key, AttributeValue content)
      : name(std::move(key)), value(std::move(content)) {}
  Attribute(std::string key, std::integral auto content)
      : name(std::move(key)), value(static_cast<int64_t>(content)) {}
  std::string name;
  AttributeValue value;
};

// What a node is besides its op and its values.
struct NodeDetails {
  std::vector<Attribute> attributes = {};
  std::string domain = "";
  std::string name = "";  // empty: the first output's
};

class Graph {
 public:
  explicit Graph(std::string name = "main") : name_(std::move(name)) {}

  Graph& input(const std::string& name, Type type, const std::vector<Dim>& dims);
  Graph& output(const std::string& name, Type type, const std::vector<Dim>& dims);
  Graph& constant(const std::string& name, const Tensor& value);
  // A weight in a file of external data, which the caller writes.
  Graph& external(const std::string& name, const Tensor& value, const std::string& location,
                  uint64_t offset);
  // A weight that is also listed as a graph input, as some exporters write it.
  Graph& default_input(const std::string& name, const Tensor& value);
  Graph& node(const std::string& op, const std::vector<std::string>& inputs,
              const std::vector<std::string>& outputs, const NodeDetails& details = {});

  std::string bytes() const;                                        // a GraphProto
  const std::vector<std::string>& nodes() const { return nodes_; }  // NodeProtos

 private:
  std::string name_, fields_;
  std::vector<std::string> nodes_;
};

// A function of the model's own, in the domain "local": its nodes stand in `body`, which declares
// neither inputs nor outputs.
struct Function {
  std::string name;
  std::vector<std::string> inputs, outputs;
  Graph body;
};

// A ModelProto. The opset of the domains "trt", "com.microsoft" and "local" is always 1.
std::string model(const Graph& graph, int opset = 23, int ir_version = 10,
                  const std::vector<Function>& functions = {});

}  // namespace tenon::testing
