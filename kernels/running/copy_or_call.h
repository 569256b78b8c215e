// Launches that are no kernels: copies, and calls of libraries and collectives.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/stream.h"
#include "kernels/running/program.h"
#include "kernels/running/shape_instance.h"

namespace tenon::kernels {

// What a call gets as `numbers`: the launch's arguments behind its buffers.
std::vector<int64_t> numbers_of(const CompiledLaunch& launch, std::span<const uint64_t> arguments);

// Puts the launch on the stream. A call whose plan fails is made again with another plan, and
// `replaced` tells of it; not in a capture, which it may have been that failed, nor where
// `replaced` is null.
void enqueue_copy_or_call(device::Stream& stream, const CompiledLaunch& launch,
                          const ShapeInstance::LaunchSize& size,
                          std::span<const uint64_t> arguments, std::vector<std::string>* replaced);

}  // namespace tenon::kernels
