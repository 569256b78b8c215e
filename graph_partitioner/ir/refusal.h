// Why a pass has left an op as it is although it knows it: an attribute of the node, so that
// whoever finds no kernel for the op can tell.
#pragma once

#include <string_view>

namespace tenon::ir {

inline constexpr std::string_view kRefused = "refused";

}  // namespace tenon::ir
