#include "kernels/planning/overlap_schedule.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "base/error.h"

namespace tenon::kernels {
namespace {

class ReverseSchedule {
 public:
  ReverseSchedule(std::span<const ScheduledNode> nodes, const OverlapLimits& limits)
      : nodes_(nodes),
        limits_(limits),
        readers_left_(nodes.size(), 0),
        is_placed_(nodes.size(), false) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const size_t before : nodes[i].after) {
        if (before >= i) throw InternalError("a node is scheduled before what it comes after");
        ++readers_left_[before];
      }
      if (nodes[i].is_collective) unopened_.push_back(i);
    }
  }

  std::vector<size_t> build() {
    while (reversed_.size() < nodes_.size()) {
      open_what_fits();
      place(choose());
    }
    std::ranges::reverse(reversed_);
    return std::move(reversed_);
  }

 private:
  struct Flight {
    size_t node = 0;
    double hidden_from = 0;  // where other work has taken as long as it
  };

  // Ends of collectives, in their order. They take no time.
  void open_what_fits() {
    is_one_blocked_ = false;
    while (!unopened_.empty() && readers_left_[unopened_.back()] == 0) {
      is_one_blocked_ = std::ssize(in_flight_) >= limits_.collectives;
      if (is_one_blocked_) return;
      const size_t node = unopened_.back();
      unopened_.pop_back();
      in_flight_.push_back({node, now_ + nodes_[node].microseconds});
    }
  }

  size_t choose() const {
    const std::optional<size_t> work = last_ready_work();
    if (in_flight_.empty() && !work) throw InternalError("nothing can be scheduled");
    if (in_flight_.empty()) return *work;
    const auto& [collective, hidden_from] = in_flight_.front();
    if (!work) return collective;
    if (now_ < hidden_from) return *work;
    if (is_one_blocked_) return collective;
    return limits_.start_early ? *work : std::max(*work, collective);
  }

  std::optional<size_t> last_ready_work() const {
    for (size_t i = nodes_.size(); i-- > 0;) {
      if (!nodes_[i].is_collective && !is_placed_[i] && readers_left_[i] == 0) return i;
    }
    return std::nullopt;
  }

  void place(size_t node) {
    if (nodes_[node].is_collective) {
      now_ = std::max(now_, in_flight_.front().hidden_from);
      in_flight_.pop_front();
    } else {
      now_ += nodes_[node].microseconds;
    }
    is_placed_[node] = true;
    reversed_.push_back(node);
    for (const size_t before : nodes_[node].after) --readers_left_[before];
  }

  std::span<const ScheduledNode> nodes_;
  const OverlapLimits limits_;
  std::vector<size_t> readers_left_;
  std::vector<bool> is_placed_;
  std::vector<size_t> unopened_;  // collectives without an end yet, the last one at the end
  std::deque<Flight> in_flight_;  // with an end and no beginning yet, the last one at the front
  std::vector<size_t> reversed_;
  double now_ = 0;  // microseconds before the end of the program
  bool is_one_blocked_ = false;
};

}  // namespace

std::vector<size_t> schedule(std::span<const ScheduledNode> nodes, const OverlapLimits& limits) {
  return ReverseSchedule(nodes, limits).build();
}

}  // namespace tenon::kernels
