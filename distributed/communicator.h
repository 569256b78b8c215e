// Ranks that exchange tensors. One interface for all engines: NCCL and NVSHMEM between GPUs, shared
// memory and Gloo between host processes, loopback between threads of one process.
//
// Every rank of a communicator calls the same functions in the same order with the same sizes. What
// goes wrong is a CollectiveError on every rank that notices; after that the communicator is only
// good to be destroyed, and a new one can be made in the same process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/support.h"
#include "distributed/reduction.h"

namespace tenon::distributed {

// A peer is gone, late, or does something else. The message names the collective and the ranks.
class CollectiveError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One call, as messages and reports name it: "all_reduce #12 of f16[4096] (sum)". All ranks of a
// collective make an equal one.
struct CollectiveCall {
  std::string op;  // "all_reduce"
  // From 1: the how manieth collective of its communicator; of send and receive, which the other
  // ranks know nothing of, the how manieth message between the two.
  int64_t number = 0;
  int64_t elements = 0;  // of the input; of the output in all_gather, where inputs may differ
  DType dtype = DType::kUndefined;
  std::string detail;  // "sum", "root 2"; may be empty
  std::string text() const;
  bool operator==(const CollectiveCall&) const = default;
};

// Memory of its rank's GPU that an engine gave. It may outlive the communicator.
class EngineMemory {
 public:
  virtual ~EngineMemory() = default;
  virtual void* data() const = 0;
};

class Communicator {
 public:
  struct Settings {
    std::chrono::milliseconds deadline{60'000};  // of every wait
  };

  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual std::string engine() const = 0;  // "loopback", "nccl 2.28.9"
  int rank() const { return rank_; }
  int size() const { return size_; }
  // What the engine refuses of what reduction.h allows.
  virtual Support supports(DType, Reduction) const { return Support::yes(); }
  // Whether the engine has this one of the calls below, by its name: "all_gather". All of them have
  // all_reduce, broadcast, barrier and split.
  virtual Support supports_call(std::string_view) const { return Support::yes(); }
  virtual Support supports_groups(std::span<const std::vector<int>>) const {
    return Support::yes();
  }

  // Whether collectives on a GPU must have ended before any on another stream begin: the engine
  // does not see to it.
  virtual bool needs_order() const { return false; }
  // Whether the launch behind an all-reduce may begin before that has ended (PDL), and the
  // all-reduce waits itself for all before it. Of 0 elements: whether that is so of any.
  virtual bool launches_dependents(int64_t /*count*/, DType, Reduction) const { return false; }

  // `stream`: device::StreamHandle, on which the work is put; null on the host, where it is done
  // when the call returns. `in` and `out` may be the same memory in all_reduce and broadcast, in
  // the others where in is the rank's own part of out (all_gather) or out that of in
  // (reduce_scatter). All counts are elements. One thread at a time calls; a wrong argument is a
  // UserError and no call. With nothing to move a call counts, and waits for nobody.
  void all_reduce(const void* in, void* out, int64_t count, DType dtype, Reduction reduction,
                  void* stream);
  // Rank r brings counts[r]; out holds all, in the order of ranks.
  void all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                  void* stream);
  // in holds all parts, in the order of ranks; rank r gets the sum of the r-th, counts[r].
  void reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                      Reduction reduction, void* stream);
  void broadcast(const void* in, void* out, int64_t count, DType dtype, int root, void* stream);
  // The r-th part of in goes to rank r, and the part at r of out comes from it; each has `count`.
  void all_to_all(const void* in, void* out, int64_t count, DType dtype, void* stream);
  // Pairs of source and target, each rank at most once on either side; who has no source gets
  // zeros.
  void permute(const void* in, void* out, int64_t count, DType dtype,
               std::span<const std::pair<int, int>> pairs, void* stream);
  void send(const void* in, int64_t count, DType dtype, int to, void* stream);
  void receive(void* out, int64_t count, DType dtype, int from, void* stream);
  void barrier(void* stream);

  // A communicator of some of these ranks, who are numbered by their place in their group. All
  // ranks call it with the same groups, which do not overlap; null for who is in none.
  std::unique_ptr<Communicator> split(std::span<const std::vector<int>> groups);

  // Memory that the engine can register. Null: it has none of its own, and any memory will do.
  // Waits for nobody; throws CollectiveError where there is not enough.
  virtual std::unique_ptr<EngineMemory> allocate(size_t /*bytes*/) { return nullptr; }
  // From now on, until the memory goes, collectives on it may be faster. All ranks call it with
  // what allocate() gave for the same size, and place what they exchange at the same distance from
  // its begin: else results are wrong. Says whether it was taken, on all ranks alike.
  Support register_memory(EngineMemory& memory);

  // Ends what waits inside of this rank's calls, from another thread: they throw a CollectiveError
  // with this reason, and so does every later call.
  virtual void abort(const std::string& reason) = 0;

  // For messages: what this rank did last, and what it is in or failed in.
  struct Progress {
    CollectiveCall last_finished, first_unfinished;  // number 0: none
    // "is in all_reduce #12 of f16[4096] (sum), last finished barrier #11", "has called nothing"
    std::string text() const;
  };
  Progress progress() const;
  std::string failure() const;  // why every call throws; empty: none does

 protected:
  Communicator(int rank, int size, Settings settings);
  const Settings& settings() const { return settings_; }
  // The call that do_... was called for.
  CollectiveCall current() const;
  // From now on every call throws a CollectiveError with this text; the first one stays.
  void fail(const std::string& why);

  // As above, with arguments that have been checked and are not empty. An engine overrides those
  // that supports_call says yes to: the others throw an InternalError.
  virtual void do_all_reduce(const void* in, void* out, int64_t count, DType dtype,
                             Reduction reduction, void* stream);
  virtual void do_all_gather(const void* in, void* out, std::span<const int64_t> counts,
                             DType dtype, void* stream);
  virtual void do_reduce_scatter(const void* in, void* out, std::span<const int64_t> counts,
                                 DType dtype, Reduction reduction, void* stream);
  virtual void do_broadcast(const void* in, void* out, int64_t count, DType dtype, int root,
                            void* stream);
  virtual void do_all_to_all(const void* in, void* out, int64_t count, DType dtype, void* stream);
  virtual void do_permute(const void* in, void* out, int64_t count, DType dtype,
                          std::span<const std::pair<int, int>> pairs, void* stream);
  virtual void do_send(const void* in, int64_t count, DType dtype, int to, void* stream);
  virtual void do_receive(void* out, int64_t count, DType dtype, int from, void* stream);
  virtual void do_barrier(void* stream);
  // `group`: the one that this rank is in, by its number; null: in none.
  virtual std::unique_ptr<Communicator> do_split(std::span<const std::vector<int>> groups,
                                                 const std::vector<int>* group);
  virtual Support do_register_memory(EngineMemory& memory);

 private:
  struct Record;
  // Numbers the call by `counter`, keeps what it came to, and does the work unless there is none.
  void call(CollectiveCall call, int64_t& counter, bool empty, const std::function<void()>& work);
  [[noreturn]] void refuse() const;

  const int rank_, size_;
  const Settings settings_;
  std::unique_ptr<Record> record_;
};

}  // namespace tenon::distributed
