// Names of the runtime's nodes and of what they read and write.
#pragma once

#include <onnxruntime_c_api.h>

#include <string>
#include <vector>

#include "provider/api.h"

namespace tenon::provider {

std::string name_of_node(const OrtNode& node);
std::string name_of_value(const OrtValueInfo& value);
std::vector<const OrtValueInfo*> inputs_of(const OrtNode& node);
std::vector<const OrtValueInfo*> outputs_of(const OrtNode& node);
std::vector<std::string> input_names(const OrtNode& node);  // "" for one that is left out
std::vector<std::string> output_names(const OrtNode& node);

}  // namespace tenon::provider
