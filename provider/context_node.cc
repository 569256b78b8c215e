#include "provider/context_node.h"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "provider/api.h"
#include "provider/names.h"
#include "provider/node_names.h"

namespace tenon::provider {
namespace {

const OrtApi& api() { return *runtime().api; }

using Attribute = std::unique_ptr<OrtOpAttr, void (*)(OrtOpAttr*)>;

Attribute own(OrtOpAttr* attribute) {
  return {attribute, [](OrtOpAttr* a) { api().ReleaseOpAttr(a); }};
}

Attribute attribute(const char* name, int64_t value) {
  OrtOpAttr* made = nullptr;
  check(api().CreateOpAttr(name, &value, 1, ORT_OP_ATTR_INT, &made));
  return own(made);
}

Attribute attribute(const char* name, std::string_view value) {
  if (value.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    throw InternalError(fmt::format("attribute {} of {} bytes", name, value.size()));
  }
  OrtOpAttr* made = nullptr;
  check(api().CreateOpAttr(name, value.data(), static_cast<int>(value.size()), ORT_OP_ATTR_STRING,
                           &made));
  return own(made);
}

// Null: the node has no such attribute.
const OrtOpAttr* find(const OrtNode& node, const char* name, OrtOpAttrType wanted) {
  const OrtOpAttr* found = nullptr;
  if (OrtStatus* status = api().Node_GetAttributeByName(&node, name, &found)) {
    api().ReleaseStatus(status);
    return nullptr;
  }
  if (found == nullptr) return nullptr;
  OrtOpAttrType type = ORT_OP_ATTR_UNDEFINED;
  check(api().OpAttr_GetType(found, &type));
  if (type != wanted) {
    throw UserError(fmt::format(
        "attribute {} of the context node has another type than EPContext gives it", name));
  }
  return found;
}

int64_t number(const OrtNode& node, const char* name, int64_t otherwise) {
  const OrtOpAttr* found = find(node, name, ORT_OP_ATTR_INT);
  if (found == nullptr) return otherwise;
  int64_t value = 0;
  size_t size = 0;
  check(api().ReadOpAttr(found, ORT_OP_ATTR_INT, &value, sizeof(value), &size));
  return value;
}

std::string text(const OrtNode& node, const char* name) {
  const OrtOpAttr* found = find(node, name, ORT_OP_ATTR_STRING);
  if (found == nullptr) return "";
  size_t size = 0;
  // The first call fails by design: it only tells the size.
  if (OrtStatus* status = api().ReadOpAttr(found, ORT_OP_ATTR_STRING, nullptr, 0, &size)) {
    api().ReleaseStatus(status);
  }
  std::string value(size, '\0');
  if (size > 0) check(api().ReadOpAttr(found, ORT_OP_ATTR_STRING, value.data(), size, &size));
  value.resize(size);
  return value;
}

// Notes may be anybody's.
std::string digest_in(const std::string& notes) {
  const auto json = nlohmann::json::parse(notes, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return "";
  const auto found = json.find(kDigestNote);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> result;
  for (const std::string& text : texts) result.push_back(text.c_str());
  return result;
}

bool is_context(const OrtNode& node) {
  const char *op = "", *domain = "";
  check(api().Node_GetOperatorType(&node, &op));
  check(api().Node_GetDomain(&node, &domain));
  return domain != nullptr && fmt::format("{}::{}", domain, op) == kContextOp;
}

}  // namespace

const OrtNode* context_node_of(const OrtGraph& graph) {
  size_t count = 0;
  check(api().Graph_GetNumNodes(&graph, &count));
  if (count != 1) return nullptr;
  const OrtNode* node = nullptr;
  check(api().Graph_GetNodes(&graph, &node, 1));
  return is_context(*node) ? node : nullptr;
}

ContextNode read_context_node(const OrtNode& node) {
  ContextNode read;
  read.name = name_of_node(node);
  read.inputs = input_names(node);
  read.outputs = output_names(node);
  read.is_main = number(node, "main_context", 1) != 0;
  read.embedded = number(node, "embed_mode", 1) != 0;
  read.context = text(node, kContextBytes);
  read.partition = text(node, "partition_name");
  read.architecture = text(node, "hardware_architecture");
  read.notes = text(node, "notes");
  read.digest = digest_in(read.notes);
  return read;
}

OrtNode* make_context_node(const ContextNode& node) {
  std::vector<Attribute> attributes;
  attributes.push_back(attribute("main_context", int64_t{node.is_main}));
  attributes.push_back(attribute("embed_mode", int64_t{node.embedded}));
  attributes.push_back(attribute(kContextBytes, node.context));
  attributes.push_back(attribute("source", kProviderName));
  attributes.push_back(attribute("ep_sdk_version", TENON_VERSION));
  attributes.push_back(attribute("partition_name", node.partition));
  attributes.push_back(attribute("hardware_architecture", node.architecture));
  attributes.push_back(attribute("notes", node.notes));
  std::vector<OrtOpAttr*> borrowed;
  for (const Attribute& attribute : attributes) borrowed.push_back(attribute.get());
  const std::vector<const char*> inputs = pointers(node.inputs), outputs = pointers(node.outputs);
  OrtNode* made = nullptr;
  check(api().GetModelEditorApi()->CreateNode(
      "EPContext", "com.microsoft", node.name.c_str(), inputs.data(), inputs.size(), outputs.data(),
      outputs.size(), borrowed.data(), borrowed.size(), &made));
  // It copied them and, whatever its description says, released them as well.
  for (Attribute& attribute : attributes) (void)attribute.release();
  return made;
}

std::string source_of(const ir::Node& node) {
  const auto found = node.attributes.find("source");
  if (found == node.attributes.end()) return "";
  const auto* source = std::get_if<std::string>(&found->second);
  return source == nullptr ? "" : *source;
}

bool may_read(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64:
    case DType::kF16:
    case DType::kF32:
    case DType::kF64:
    case DType::kBF16:
      return true;
    default:
      return false;
  }
}

}  // namespace tenon::provider
