// Maps of matrices for the copy engine: what may be encoded, and whether a launch brings the maps
// of the matrices that its kernel fetches boxes from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/tile/ir.h"
#include "kernels/device/stub/world.h"

namespace tenon::stub {

// Bytes of each parameter of a PTX text that is an array: a map has 128.
std::vector<size_t> array_parameters(std::string_view ptx);

// `maps`: what the launch brings behind the kernel's own arguments. `arguments`: those, by
// parameter.
Result check_maps(World& world, const codegen::Kernel& kernel, std::span<void* const> maps,
                  std::span<const uint64_t> arguments, const std::string& work);

}  // namespace tenon::stub
