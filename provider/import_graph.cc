#include "provider/import_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "provider/api.h"
#include "provider/context_node.h"
#include "provider/custom_op_schemas.h"

namespace tenon::provider {
namespace {

const OrtApi& api() { return *runtime().api; }

// Reads one of the C API's (count, fill) pairs of functions.
template <typename T, typename Owner>
std::vector<T> list(OrtStatus* (*count)(const Owner*, size_t*) noexcept,
                    OrtStatus* (*fill)(const Owner*, T*, size_t) noexcept, const Owner& owner) {
  size_t size = 0;
  check(count(&owner, &size));
  std::vector<T> items(size);
  if (size > 0) check(fill(&owner, items.data(), size));
  return items;
}

std::string value_name(const OrtValueInfo& info) {
  const char* name = nullptr;
  check(api().GetValueInfoName(&info, &name));
  return name;
}

bool ask(OrtStatus* (*question)(const OrtValueInfo*, bool*) noexcept, const OrtValueInfo& info) {
  bool answer = false;
  check(question(&info, &answer));
  return answer;
}

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

struct TensorInfo {
  DType dtype = DType::kUndefined;
  std::optional<Shape> shape;
};

TensorInfo tensor_info(const OrtValueInfo& info) {
  const OrtTypeInfo* type = nullptr;
  check(api().GetValueInfoTypeInfo(&info, &type));
  ONNXType kind = ONNX_TYPE_UNKNOWN;
  if (type == nullptr) return {};
  check(api().GetOnnxTypeFromTypeInfo(type, &kind));
  if (kind != ONNX_TYPE_TENSOR) return {};
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  check(api().CastTypeInfoToTensorInfo(type, &tensor));

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
      shape.push_back(Dim::symbol(unnamed_symbol(value_name(info), axis)));
    }
  }
  result.shape = std::move(shape);
  return result;
}

ir::TensorPtr tensor_of(const OrtValue& value) {
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  const int64_t* dims = nullptr;
  size_t rank = 0;
  check(api().GetTensorElementTypeAndShapeDataReference(&value, &element, &dims, &rank));
  auto tensor = std::make_shared<ir::Tensor>();
  tensor->dtype = dtype_of(element);
  if (tensor->dtype == DType::kUndefined || tensor->dtype == DType::kString) return nullptr;
  tensor->dims.assign(dims, dims + rank);
  tensor->bytes = storage_bytes(tensor->dtype, tensor->elements());
  size_t stored = 0;
  check(api().GetTensorSizeInBytes(&value, &stored));
  if (stored < tensor->bytes) return nullptr;
  const void* data = nullptr;
  check(api().GetTensorData(&value, &data));
  tensor->data = static_cast<const std::byte*>(data);
  return tensor;
}

std::vector<char> attribute_bytes(const OrtOpAttr& attribute, OrtOpAttrType type) {
  size_t size = 0;
  // The first call fails by design: it only tells the size.
  if (OrtStatus* status = api().ReadOpAttr(&attribute, type, nullptr, 0, &size)) {
    api().ReleaseStatus(status);
  }
  std::vector<char> bytes(size);
  if (size > 0) check(api().ReadOpAttr(&attribute, type, bytes.data(), size, &size));
  bytes.resize(size);
  return bytes;
}

template <typename T>
std::vector<T> attribute_array(const OrtOpAttr& attribute, OrtOpAttrType type) {
  const std::vector<char> bytes = attribute_bytes(attribute, type);
  const T* first = reinterpret_cast<const T*>(bytes.data());
  return {first, first + bytes.size() / sizeof(T)};
}

std::vector<std::string> attribute_strings(const OrtOpAttr& attribute) {
  const std::vector<char> bytes = attribute_bytes(attribute, ORT_OP_ATTR_STRINGS);
  std::vector<std::string> strings;
  for (size_t begin = 0; begin < bytes.size(); begin += strings.back().size() + 1) {
    strings.emplace_back(&bytes[begin]);
  }
  return strings;
}

// nullopt for graphs and for what the runtime cannot show.
std::optional<ir::Attribute> attribute_of(const OrtOpAttr& attribute) {
  OrtOpAttrType type = ORT_OP_ATTR_UNDEFINED;
  check(api().OpAttr_GetType(&attribute, &type));
  switch (type) {
    case ORT_OP_ATTR_INT: {
      int64_t value = 0;
      size_t size = 0;
      check(api().ReadOpAttr(&attribute, type, &value, sizeof(value), &size));
      return value;
    }
    case ORT_OP_ATTR_FLOAT: {
      float value = 0;
      size_t size = 0;
      check(api().ReadOpAttr(&attribute, type, &value, sizeof(value), &size));
      return value;
    }
    case ORT_OP_ATTR_STRING: {
      const std::vector<char> bytes = attribute_bytes(attribute, type);
      return std::string(bytes.begin(), bytes.end());
    }
    case ORT_OP_ATTR_INTS:
      return attribute_array<int64_t>(attribute, type);
    case ORT_OP_ATTR_FLOATS:
      return attribute_array<float>(attribute, type);
    case ORT_OP_ATTR_STRINGS:
      return attribute_strings(attribute);
    case ORT_OP_ATTR_TENSOR: {
      OrtValue* value = nullptr;
      check(api().OpAttr_GetTensorAttributeAsOrtValue(&attribute, &value));
      const std::shared_ptr<OrtValue> owner(value, [](OrtValue* v) { api().ReleaseValue(v); });
      const ir::TensorPtr borrowed = tensor_of(*value);
      if (borrowed == nullptr) return std::nullopt;
      auto owned = std::make_shared<ir::Tensor>(*borrowed);
      owned->owner = owner;
      return owned;
    }
    default:
      return std::nullopt;
  }
}

class Importer {
 public:
  Importer(const OrtGraph& source, bool with_files) : source_(source), with_files_(with_files) {}

  ImportedGraph run() {
    const char* name = nullptr;
    check(api().Graph_GetName(&source_, &name));
    result_.graph.name = name;
    for (const auto* info : list(api().Graph_GetNumInputs, api().Graph_GetInputs, source_)) {
      add_input(*info);
    }
    for (const auto* node : list(api().Graph_GetNumNodes, api().Graph_GetNodes, source_)) {
      add_node(*node);
    }
    for (const auto* info : list(api().Graph_GetNumOutputs, api().Graph_GetOutputs, source_)) {
      result_.graph.add_output(value_id(info));
    }
    return std::move(result_);
  }

 private:
  ir::Value describe(const OrtValueInfo& info) const {
    TensorInfo tensor = tensor_info(info);
    ir::Value value;
    value.name = value_name(info);
    value.dtype = tensor.dtype;
    value.shape = std::move(tensor.shape);
    return value;
  }

  // Sets the data of an initialiser; false when the value is none.
  bool add_initializer(ir::Value& value, const OrtValueInfo& info) {
    const OrtValue* initializer = nullptr;
    check(api().ValueInfo_GetInitializerValue(&info, &initializer));
    if (initializer == nullptr) return false;
    value.constant = tensor_of(*initializer);
    if (value.constant == nullptr) return false;
    value.dtype = value.constant->dtype;
    value.shape = make_shape(value.constant->dims);
    if (with_files_) add_file(*value.constant, info);
    return true;
  }

  void add_file(const ir::Tensor& tensor, const OrtValueInfo& info) {
    OrtExternalInitializerInfo* found = nullptr;
    check(api().ValueInfo_GetExternalInitializerInfo(&info, &found));
    if (found == nullptr) return;
    const std::unique_ptr<OrtExternalInitializerInfo, void (*)(OrtExternalInitializerInfo*)> owner(
        found, api().ReleaseExternalInitializerInfo);
    const ORTCHAR_T* path = api().ExternalInitializerInfo_GetFilePath(found);
    const int64_t offset = api().ExternalInitializerInfo_GetFileOffset(found);
    const size_t bytes = api().ExternalInitializerInfo_GetByteSize(found);
    if (path == nullptr || offset < 0 || bytes < tensor.bytes) return;
    result_.files.push_back({{tensor.data, tensor.bytes}, path, static_cast<uint64_t>(offset)});
  }

  void add_input(const OrtValueInfo& info) {
    ir::Value value = describe(info);
    const std::string name = value.name;
    if (add_initializer(value, info)) {
      if (!ask(api().ValueInfo_IsConstantInitializer, info)) {
        result_.assumed_defaults.push_back(name);
      }
      ids_[name] = result_.graph.add_constant(name, value.constant);
    } else {
      ids_[name] = result_.graph.add_input(std::move(value));
    }
  }

  // A value seen first as a node's input comes from an initialiser or an outer scope.
  ir::ValueId value_id(const OrtValueInfo* info) {
    if (info == nullptr) return ir::kNoValue;
    const std::string name = value_name(*info);
    if (name.empty()) return ir::kNoValue;
    const auto known = ids_.find(name);
    if (known != ids_.end()) return known->second;
    add_input(*info);
    return ids_.at(name);
  }

  void add_node(const OrtNode& source) {
    ir::Node node;
    node.op = op_name(source);
    check(api().Node_GetSinceVersion(&source, &node.since_version));
    node.sources = {static_cast<int>(result_.nodes.size())};
    add_attributes(source, node);
    for (const auto* input : list(api().Node_GetNumInputs, api().Node_GetInputs, source)) {
      node.inputs.push_back(value_id(input));
    }
    // What a control-flow node's bodies read counts as read by the node.
    for (const auto* input :
         list(api().Node_GetNumImplicitInputs, api().Node_GetImplicitInputs, source)) {
      node.inputs.push_back(value_id(input));
    }
    for (const auto* output : list(api().Node_GetNumOutputs, api().Node_GetOutputs, source)) {
      node.outputs.push_back(output_id(output));
    }
    restore_fp8_codes(node);
    node.name = node_name(source, node);
    result_.nodes.push_back(&source);
    result_.node_names.push_back(node.name);
    result_.graph.add_node(std::move(node));
  }

  // FP8 codes that are declared uint8 are FP8 to every reader and wherever the graph is cut, and so
  // is what moves them.
  void restore_fp8_codes(const ir::Node& node) {
    const auto dtype = [&](ir::ValueId id) {
      return id == ir::kNoValue ? DType::kUndefined : result_.graph.value(id).dtype;
    };
    const bool moves = node.op != "Cast" && std::ranges::any_of(node.inputs, [&](ir::ValueId id) {
                         return fp8_codes_.contains(id);
                       });
    if (!moves && !makes_fp8_codes(node.op, dtype(node.input(2)))) return;
    for (const ir::ValueId output : node.outputs) {
      if (dtype(output) != DType::kU8) continue;
      result_.graph.value(output).dtype = DType::kF8E4M3FN;
      fp8_codes_.insert(output);
    }
  }

  // A node without a name goes by its op and first output: the same in every import.
  std::string node_name(const OrtNode& source, const ir::Node& node) const {
    const char* name = nullptr;
    check(api().Node_GetName(&source, &name));
    if (*name != 0) return name;
    for (const ir::ValueId output : node.outputs) {
      if (output != ir::kNoValue) {
        return fmt::format("{}({})", node.op, result_.graph.value(output).name);
      }
    }
    return node.op;
  }

  static std::string op_name(const OrtNode& source) {
    const char* op = nullptr;
    const char* domain = nullptr;
    check(api().Node_GetOperatorType(&source, &op));
    check(api().Node_GetDomain(&source, &domain));
    const std::string_view space = domain == nullptr ? "" : domain;
    return space.empty() || space == "ai.onnx" ? op : fmt::format("{}::{}", space, op);
  }

  static void add_attributes(const OrtNode& source, ir::Node& node) {
    for (const auto* attribute :
         list(api().Node_GetNumAttributes, api().Node_GetAttributes, source)) {
      if (attribute == nullptr) continue;
      const char* name = nullptr;
      check(api().OpAttr_GetName(attribute, &name));
      if (node.op == kContextOp && std::string_view(name) == kContextBytes) continue;
      // One that cannot be read is still there: whoever does not know it must see it.
      node.attributes[name] = attribute_of(*attribute).value_or("a value that cannot be read");
    }
  }

  ir::ValueId output_id(const OrtValueInfo* info) {
    if (info == nullptr) return ir::kNoValue;
    ir::Value value = describe(*info);
    if (value.name.empty()) return ir::kNoValue;
    const std::string name = value.name;
    return ids_[name] = result_.graph.add_value(std::move(value));
  }

  const OrtGraph& source_;
  const bool with_files_;
  ImportedGraph result_;
  std::unordered_map<std::string, ir::ValueId> ids_;
  std::set<ir::ValueId> fp8_codes_;  // declared uint8
};

}  // namespace

ImportedGraph import_graph(const OrtGraph& graph, bool with_files) {
  return Importer(graph, with_files).run();
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
