// What a Run needs for itself, one per concurrent Run and kept between Runs, so that a warm one
// allocates nothing.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace tenon::kernels {

template <typename State>
class StatePool {
 public:
  // Back in the pool at the end of its scope, also when the Run throws.
  class Lease {
   public:
    Lease(StatePool& pool, std::unique_ptr<State> state) : pool_(pool), state_(std::move(state)) {}
    ~Lease() {
      const std::lock_guard lock(pool_.mutex_);
      (kept_ ? pool_.kept_ : pool_.idle_).push_back(std::move(state_));
    }
    // No other Run gets it: someone has recorded its addresses.
    void keep() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.kept_.reserve(pool_.count_);
      kept_ = true;
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    State& operator*() { return *state_; }

   private:
    StatePool& pool_;
    std::unique_ptr<State> state_;
    bool kept_ = false;
  };

  // Of the states that `fits` likes, else of all, the one that was used last; or a new one from
  // `make`.
  template <typename Make, typename Fits>
  Lease lease(const Make& make, const Fits& fits) {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto found = std::find_if(idle_.rbegin(), idle_.rend(),
                                  [&](const auto& state) { return fits(*state); });
        if (found != idle_.rend()) std::swap(*found, idle_.back());
        auto state = std::move(idle_.back());
        idle_.pop_back();
        return Lease(*this, std::move(state));
      }
    }
    std::unique_ptr<State> made = make();
    const std::lock_guard lock(mutex_);
    idle_.reserve(++count_);  // so that giving it back cannot fail
    return Lease(*this, std::move(made));
  }

  template <typename Make>
  Lease lease(const Make& make) {
    return lease(make, [](const State&) { return true; });
  }

  // States that no Run has right now; Runs that begin or end meanwhile wait.
  template <typename Visit>
  void each_idle(const Visit& visit) {
    const std::lock_guard lock(mutex_);
    for (const auto& state : idle_) visit(*state);
  }

  // Only while no Run is in flight.
  std::vector<std::unique_ptr<State>>& idle() { return idle_; }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<State>> idle_, kept_;
  size_t count_ = 0;
};

}  // namespace tenon::kernels
