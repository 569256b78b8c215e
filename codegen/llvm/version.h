#pragma once

#include <string_view>

namespace tenon::codegen {

std::string_view llvm_version();  // "19.1.7"

}  // namespace tenon::codegen
