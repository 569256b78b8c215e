// The order of a program's nodes in which collectives run beside other work.
//
// List scheduling from the end of the program: a node is ready when all that come behind it are
// placed. A collective is placed twice: where it has ended, as late as who reads it allows, and
// where it begins. What is placed in between runs beside it. Among ready nodes the last of the
// given order comes first, so that without collectives the order stays what it was.
//
// Collectives keep their order, whatever things cost: all ranks call them alike.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tenon::kernels {

struct ScheduledNode {
  std::vector<size_t> after;  // nodes that come before it
  bool is_collective = false;
  // What it is expected to take. Nothing runs beside a node that is no collective but those.
  double microseconds = 0;
};

// Sessions schedule with these defaults; others are what the algorithm is tested with.
struct OverlapLimits {
  int collectives = 1;  // begun and not ended
  // A collective begins as early as it can, also where what runs beside it is enough to hide it: it
  // may take longer than was thought. Only where no other one waits for it to end.
  bool start_early = false;
};

// Places of `nodes` in their new order. `nodes` are in an order that `after` allows.
std::vector<size_t> schedule(std::span<const ScheduledNode> nodes, const OverlapLimits& limits);

}  // namespace tenon::kernels
