// The threads of one Run on the host. They are asked for once, stay until the Run's last launch and
// take pieces of the launch at hand, whoever is free first: a launch costs a hand-over between
// cores instead of a round through the runtime's pool, and a slow core takes fewer pieces.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

namespace tenon {

class ParallelRegion {
 public:
  using Range = std::function<void(int64_t, int64_t)>;

  // `start_threads` calls what it is given on as many threads as it has and returns when all calls
  // have. The first one drives; the others help it from run_pieces to run_pieces. None of them is
  // waited for: a runtime that has no thread to spare, or makes one call after the other, leaves
  // all the work to the driver. The first exception of any thread ends the region and is rethrown.
  void run(const std::function<void(const std::function<void()>&)>& start_threads,
           const std::function<void()>& drive);

  // Of `drive`: fn over [0, total) in so many ranges; all are done when it returns.
  void run_pieces(int64_t total, int64_t pieces, const Range& fn);

 private:
  void join(const std::function<void()>& drive);
  void help();
  void take_piece(uint64_t seen);
  void record_failure();

  // The launch at hand. Written while no piece is offered, read by who has taken one.
  const Range* fn_ = nullptr;
  int64_t total_ = 0, pieces_ = 0;

  // Launches so far in the upper half, pieces that nobody has taken in the lower one: a thread that
  // was late cannot take a piece of another launch than it saw.
  alignas(64) std::atomic<uint64_t> offer_ = 0;
  alignas(64) std::atomic<int64_t> unfinished_ = 0;  // pieces
  std::atomic<bool> has_driver_ = false;
  std::atomic<bool> failed_ = false;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

}  // namespace tenon
