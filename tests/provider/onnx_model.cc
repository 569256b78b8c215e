#include "onnx_model.h"

#include <cstring>
#include <functional>
#include <numeric>

namespace tenon::testing {
namespace {

// Protocol Buffers' wire format: each field is (number << 3 | kind) and then its content.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes += static_cast<char>(value);
}

std::string number(int field, int64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(static_cast<uint64_t>(value));
}

std::string text(int field, const std::string& content) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(content.size()) + content;
}

std::string float32(int field, float value) {
  std::string bytes(sizeof(value), 0);
  std::memcpy(bytes.data(), &value, sizeof(value));
  return varint(static_cast<uint64_t>(field) << 3 | 5) + bytes;
}

// The numbers of AttributeProto.AttributeType.
enum AttributeType { kFloatAttribute = 1, kInt, kText, kTensor, kGraph, kFloats, kInts };

// The runtime's numbers are ONNX's, but for the newest types.
int64_t onnx_type(Type type) { return type == kE8M0 ? 24 : type; }

std::string tensor_proto(const std::string& name, const Tensor& tensor) {
  std::string proto;
  for (const int64_t dim : tensor.dims) proto += number(1, dim);
  return proto + number(2, onnx_type(tensor.type)) + text(8, name) + text(9, tensor.bytes);
}

std::string value_info(const std::string& name, Type type, const std::vector<Dim>& dims) {
  std::string shape;
  for (const Dim& dim : dims) {
    const auto* size = std::get_if<int64_t>(&dim.size);
    shape += text(1, size != nullptr ? number(1, *size) : text(2, std::get<std::string>(dim.size)));
  }
  const std::string tensor_type = number(1, onnx_type(type)) + text(2, shape);
  return text(1, name) + text(2, text(1, tensor_type));
}

struct AttributeWriter {
  std::string operator()(int64_t value) const { return number(3, value) + number(20, kInt); }
  std::string operator()(float value) const {
    return float32(2, value) + number(20, kFloatAttribute);
  }
  std::string operator()(const std::string& value) const {
    return text(4, value) + number(20, kText);
  }
  std::string operator()(const std::vector<int64_t>& values) const {
    std::string proto;
    for (const int64_t value : values) proto += number(8, value);
    return proto + number(20, kInts);
  }
  std::string operator()(const Tensor& value) const {
    return text(5, tensor_proto("", value)) + number(20, kTensor);
  }
  std::string operator()(const Graph* body) const {
    return text(6, body->bytes()) + number(20, kGraph);
  }
};

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

int64_t Tensor::elements() const {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

Tensor floats(std::vector<int64_t> dims, const std::vector<float>& values) {
  return {kFloat, std::move(dims), raw(values)};
}

Tensor filled(std::vector<int64_t> dims, float value) {
  Tensor tensor{kFloat, std::move(dims), {}};
  tensor.bytes = raw(std::vector<float>(static_cast<size_t>(tensor.elements()), value));
  return tensor;
}

Tensor int64s(std::vector<int64_t> dims, const std::vector<int64_t>& values) {
  return {kInt64, std::move(dims), raw(values)};
}

Tensor bools(std::vector<int64_t> dims, const std::vector<bool>& values) {
  return {kBool, std::move(dims), std::string(values.begin(), values.end())};
}

Graph& Graph::input(const std::string& name, Type type, const std::vector<Dim>& dims) {
  fields_ += text(11, value_info(name, type, dims));
  return *this;
}

Graph& Graph::output(const std::string& name, Type type, const std::vector<Dim>& dims) {
  fields_ += text(12, value_info(name, type, dims));
  return *this;
}

Graph& Graph::constant(const std::string& name, const Tensor& value) {
  fields_ += text(5, tensor_proto(name, value));
  return *this;
}

Graph& Graph::external(const std::string& name, const Tensor& value, const std::string& location,
                       uint64_t offset) {
  std::string proto = tensor_proto(name, {value.type, value.dims, ""});
  for (const auto& [key, entry] : {std::pair<std::string, std::string>{"location", location},
                                   {"offset", std::to_string(offset)},
                                   {"length", std::to_string(value.bytes.size())}}) {
    proto += text(13, text(1, key) + text(2, entry));
  }
  fields_ += text(5, proto + number(14, 1));
  return *this;
}

Graph& Graph::default_input(const std::string& name, const Tensor& value) {
  return input(name, value.type, {value.dims.begin(), value.dims.end()}).constant(name, value);
}

Graph& Graph::node(const std::string& op, const std::vector<std::string>& inputs,
                   const std::vector<std::string>& outputs, const NodeDetails& details) {
  std::string proto;
  for (const std::string& input : inputs) proto += text(1, input);
  for (const std::string& output : outputs) proto += text(2, output);
  proto += text(3, details.name.empty() ? outputs.front() : details.name) + text(4, op);
  for (const Attribute& attribute : details.attributes) {
    proto += text(5, text(1, attribute.name) + std::visit(AttributeWriter{}, attribute.value));
  }
  nodes_.push_back(proto + text(7, details.domain));
  return *this;
}

std::string Graph::bytes() const {
  std::string proto;
  for (const std::string& node : nodes_) proto += text(1, node);
  return proto + text(2, name_) + fields_;
}

std::string model(const Graph& graph, int opset, int ir_version,
                  const std::vector<Function>& functions) {
  const std::string default_opset = number(2, opset);
  std::string proto = number(1, ir_version) + text(7, graph.bytes()) + text(8, default_opset);
  for (const char* domain : {"trt", "com.microsoft", "local"}) {
    proto += text(8, text(1, domain) + number(2, 1));
  }
  for (const Function& function : functions) {
    std::string fields = text(1, function.name) + text(10, "local") + text(9, default_opset);
    for (const std::string& input : function.inputs) fields += text(4, input);
    for (const std::string& output : function.outputs) fields += text(5, output);
    for (const std::string& node : function.body.nodes()) fields += text(7, node);
    proto += text(25, fields);
  }
  return proto;
}

}  // namespace tenon::testing
