// What is expected of a processor's time, where nobody measures it.
#pragma once

namespace tenon::codegen {

struct HostCosts {
  double bytes;  // that a core gets from memory in a microsecond
};

// 50.2 GB/s by the two cores of a Neoverse V1, from `make bench`. Nobody measured others.
inline constexpr HostCosts kHostCosts = {.bytes = 25'000};

}  // namespace tenon::codegen
