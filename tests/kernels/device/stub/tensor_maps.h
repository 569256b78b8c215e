// TMA descriptors of matrices: what may be encoded, and whether a launch brings those of the
// matrices that its kernel loads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/tile/ir.h"
#include "tests/kernels/device/stub/world.h"

namespace tenon::stub {

// Bytes of each parameter of a PTX text that is an array: a TMA descriptor has 128.
std::vector<size_t> array_parameters(std::string_view ptx);

// `descriptors`: what the launch brings behind the kernel's own arguments. `arguments`: those, by
// parameter.
Result check_tma_descriptors(World& world, const codegen::Kernel& kernel,
                             std::span<void* const> descriptors,
                             std::span<const uint64_t> arguments, const std::string& work);

}  // namespace tenon::stub
