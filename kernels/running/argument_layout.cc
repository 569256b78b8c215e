#include "kernels/running/argument_layout.h"

#include <algorithm>

namespace tenon::kernels {

ArgumentLayout::ArgumentLayout(const Program& program) {
  for (size_t slot = 0; slot < program.slots.size(); ++slot) {
    const Slot& described = program.slots[slot];
    if (!described.is_callers()) continue;
    callers.push_back({slot, described.kind == Slot::Kind::kInput, described.index});
  }
  size_t next_index = 0;
  for (const CompiledLaunch& launch : program.launches) {
    auto slot = launch.slots.begin();
    for (const bool is_buffer : launch.is_buffer) {
      if (is_buffer && program.slots[*slot].is_callers()) {
        const auto caller = std::ranges::find(callers, *slot, &Caller::slot);
        patches.push_back({arguments.size(), static_cast<size_t>(caller - callers.begin())});
      }
      arguments.push_back(is_buffer ? Argument{true, *slot++} : Argument{false, next_index++});
    }
  }
  add_fetches(program);
}

void ArgumentLayout::add_fetches(const Program& program) {
  size_t first = 0;
  for (size_t i = 0; i < program.launches.size(); ++i) {
    const CompiledLaunch& launch = program.launches[i];
    for (size_t number = 0; number < launch.fetched.size(); ++number) {
      const size_t position = first + launch.fetched[number].parameter;
      const auto patch = std::ranges::find(patches, position, &Patch::position);
      if (patch != patches.end()) fetches.push_back({i, number, *patch});
    }
    first += launch.is_buffer.size();
  }
}

}  // namespace tenon::kernels
