#include "kernels/running/collective_memory.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"

namespace tenon::kernels {

bool has_collectives(const Program& program) {
  return std::ranges::any_of(program.launches, [](const CompiledLaunch& launch) {
    return launch.kind == LaunchKind::kCollective;
  });
}

std::string arena_layout(const Program& program) {
  std::string text;
  for (size_t i = 0; i < program.slots.size(); ++i) {
    const Slot& slot = program.slots[i];
    if (slot.kind != Slot::Kind::kArena) continue;
    text += fmt::format("{} {} {} {}\n", i, slot.bytes.text(), slot.first, slot.last);
  }
  for (const CompiledLaunch& launch : program.launches) {
    if (launch.kind != LaunchKind::kCollective) continue;
    text += fmt::format("{} {}\n", launch.call->name(), fmt::join(launch.slots, " "));
  }
  return "sha256 " + hex(sha256(text));
}

}  // namespace tenon::kernels
