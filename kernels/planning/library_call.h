// A call into a vendor library, made ready when the session is created: a cuDNN graph with its
// plan, a collective of a communicator. It puts its work on the stream of a Run; on the host it
// does it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace tenon::kernels {

// What a call had made for its numbers failed when it ran: something else may do the same
// (LibraryCall::replace).
class PlanFailed : public UserError {
 public:
  PlanFailed(const std::string& message, size_t failures_before)
      : UserError(message), failures_before(failures_before) {}
  const size_t failures_before;  // of plans for these numbers
};

// What a call takes that can be saved.
struct CallForm {
  size_t buffers = 0, numbers = 0;
  size_t first_written = 0;  // buffer: it writes those from here on and reads the others

  std::vector<bool> writes() const {
    std::vector<bool> writes(buffers, true);
    std::fill_n(writes.begin(), first_written, false);
    return writes;
  }
};

class LibraryCall {
 public:
  virtual ~LibraryCall() = default;
  virtual std::string name() const = 0;  // "cudnn_sdpa", for reports and traces

  // Every rank makes the call, in the same order. Then it is never left out of a Run.
  virtual bool is_collective() const { return false; }
  // Of a collective, as ir::Collective::groups; empty: all ranks.
  virtual std::span<const int64_t> groups() const { return {}; }
  // Whether a CUDA graph may hold it. A program with one that may not runs without graphs.
  virtual bool can_be_captured() const { return true; }

  // What a context file holds of it, and what it takes. No bytes: it cannot be saved.
  virtual std::string saved() const { return {}; }
  virtual CallForm form() const { return {}; }

  // On a GPU: whether the launch behind it may begin before it has ended (PDL); it then waits
  // itself for all before it. Perhaps, when a program is made, and in a Run with these numbers.
  virtual bool may_launch_dependents() const { return false; }
  virtual bool launches_dependents(std::span<const int64_t> /*numbers*/) const {
    return may_launch_dependents();
  }

  // Makes what enqueue() needs for these numbers, which takes time: a run state calls it when it
  // gets its sizes, with the device current. Throws UserError where it cannot.
  virtual void prepare(std::span<const int64_t> numbers) const { (void)numbers; }

  // `buffers` and `numbers`: what Launch::buffers and Launch::indices are in this Run. `stream`:
  // device::StreamHandle, null on the host. Called by several threads at once, on buffers and
  // streams of their own. Throws PlanFailed where replace() may help.
  virtual void enqueue(void* stream, std::span<void* const> buffers,
                       std::span<const int64_t> numbers) const = 0;

  // Makes something else in place of what failed, and says what; it throws where there is nothing
  // else. Then enqueue() may be called again.
  virtual std::string replace(const PlanFailed& failed,
                              std::span<const int64_t> /*numbers*/) const {
    throw UserError(failed.what());
  }
};

}  // namespace tenon::kernels
