#include "kernels/running/copy_or_call.h"

#include <fmt/format.h>

namespace tenon::kernels {

std::vector<int64_t> numbers_of(const CompiledLaunch& launch, std::span<const uint64_t> arguments) {
  const auto numbers = arguments.subspan(launch.slots.size());
  return {numbers.begin(), numbers.end()};
}

void enqueue_copy_or_call(device::Stream& stream, const CompiledLaunch& launch,
                          const ShapeInstance::LaunchSize& size,
                          std::span<const uint64_t> arguments, std::vector<std::string>* replaced) {
  if (launch.kind == LaunchKind::kCopy) {
    if (arguments[0] == arguments[1]) return;
    return stream.copy(arguments[1], arguments[0], static_cast<size_t>(size.copy_bytes));
  }
  std::vector<void*> buffers;
  for (const uint64_t address : arguments.first(launch.slots.size())) {
    buffers.push_back(reinterpret_cast<void*>(address));
  }
  const std::vector<int64_t> numbers = numbers_of(launch, arguments);
  for (;;) {
    try {
      return launch.call->enqueue(stream.handle(), buffers, numbers);
    } catch (const PlanFailed& failed) {
      if (replaced == nullptr || stream.capturing()) throw;
      const std::string with = launch.call->replace(failed, numbers);
      replaced->push_back(
          fmt::format("{}: {}; {} runs in its place", launch.node, failed.what(), with));
    }
  }
}

}  // namespace tenon::kernels
