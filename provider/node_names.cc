#include "provider/node_names.h"

namespace tenon::provider {
namespace {

const OrtApi& api() { return *runtime().api; }

std::vector<std::string> names(const std::vector<const OrtValueInfo*>& values) {
  std::vector<std::string> result;
  for (const OrtValueInfo* value : values) {
    result.push_back(value == nullptr ? "" : name_of_value(*value));
  }
  return result;
}

}  // namespace

std::string name_of_node(const OrtNode& node) {
  const char* name = "";
  check(api().Node_GetName(&node, &name));
  return name;
}

std::string name_of_value(const OrtValueInfo& value) {
  const char* name = "";
  check(api().GetValueInfoName(&value, &name));
  return name;
}

std::vector<const OrtValueInfo*> inputs_of(const OrtNode& node) {
  size_t count = 0;
  check(api().Node_GetNumInputs(&node, &count));
  std::vector<const OrtValueInfo*> values(count);
  if (count > 0) check(api().Node_GetInputs(&node, values.data(), count));
  return values;
}

std::vector<const OrtValueInfo*> outputs_of(const OrtNode& node) {
  size_t count = 0;
  check(api().Node_GetNumOutputs(&node, &count));
  std::vector<const OrtValueInfo*> values(count);
  if (count > 0) check(api().Node_GetOutputs(&node, values.data(), count));
  return values;
}

std::vector<std::string> input_names(const OrtNode& node) { return names(inputs_of(node)); }
std::vector<std::string> output_names(const OrtNode& node) { return names(outputs_of(node)); }

}  // namespace tenon::provider
