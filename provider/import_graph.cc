#include "provider/import_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "provider/api.h"
#include "provider/context_node.h"
#include "provider/custom_op_schemas.h"
#include "provider/node_names.h"
#include "provider/tensor_info.h"

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

bool ask(OrtStatus* (*question)(const OrtValueInfo*, bool*) noexcept, const OrtValueInfo& info) {
  bool answer = false;
  check(question(&info, &answer));
  return answer;
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
    value.name = name_of_value(info);
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
    const std::string name = name_of_value(*info);
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

}  // namespace tenon::provider
