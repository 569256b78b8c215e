#include "distributed/nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "distributed/bounded_call.h"
#include "distributed/messages.h"

namespace tenon::distributed {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// NCCL writes the handle of a split when it is done, which may be after we gave up: the place lives
// as long as anybody may write there.
using HandlePlace = std::shared_ptr<NcclHandle>;

const char* at(const void* memory, size_t bytes) {
  return static_cast<const char*>(memory) + bytes;
}
char* at(void* memory, size_t bytes) { return static_cast<char*>(memory) + bytes; }

bool are_equal(std::span<const int64_t> counts) {
  return std::ranges::adjacent_find(counts, std::ranges::not_equal_to()) == counts.end();
}

// One NCCL communicator and what may be asked of it from two threads: the one that calls and the
// one that aborts.
class Handle {
 public:
  Handle(const NcclFunctions& functions, std::shared_ptr<RankDevice> device, milliseconds deadline)
      : functions_(functions), device_(std::move(device)), deadline_(deadline) {}

  const NcclFunctions& functions() const { return functions_; }
  RankDevice& device() { return *device_; }
  const std::shared_ptr<RankDevice>& shared_device() const { return device_; }
  NcclHandle* place() { return place_.get(); }
  void adopt(HandlePlace place) { place_ = std::move(place); }

  // Makes a call of NCCL's and waits until it is done. Empty, or what went wrong.
  std::string call(const std::function<NcclResult(NcclHandle)>& put,
                   const std::function<std::string()>& interrupted);
  // Ends what NCCL does here, on all threads and on the GPU; waits a bounded time for that.
  void abort(HandlePlace also_in_use = nullptr) noexcept;
  // The good end: waits for what is under way.
  void close() noexcept;

 private:
  std::string wait(NcclResult result, const std::function<std::string()>& interrupted);
  NcclHandle take() noexcept;
  void end_with(NcclResult (*function)(NcclHandle), HandlePlace also_in_use = nullptr) noexcept;
  milliseconds bound() const { return std::min(deadline_, milliseconds(5000)); }

  const NcclFunctions& functions_;
  const std::shared_ptr<RankDevice> device_;
  const milliseconds deadline_;
  std::mutex mutex_;  // taken for each call, so that none meets a handle that is gone
  HandlePlace place_ = std::make_shared<NcclHandle>(nullptr);
  std::atomic<bool> is_open_ = true;
};

std::string Handle::call(const std::function<NcclResult(NcclHandle)>& put,
                         const std::function<std::string()>& interrupted) {
  device_->make_current();
  NcclResult result = kNcclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (!is_open_) return interrupted();
    result = put(*place_);
    if (!is_open_) return interrupted();  // it hung, and was freed by an abort
    if (result != kNcclSuccess && result != kNcclInProgress) {
      return "NCCL: " + functions_.words(result, *place_);
    }
  }
  return wait(result, interrupted);
}

std::string Handle::wait(NcclResult result, const std::function<std::string()>& interrupted) {
  const auto until = steady_clock::now() + deadline_;
  // Most calls are done at once; connecting takes longer.
  auto pause = std::chrono::microseconds(0);
  while (result == kNcclInProgress) {
    if (steady_clock::now() >= until) {
      return fmt::format("NCCL was not done within {}, it waits for other ranks",
                         time_text(deadline_));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause + std::chrono::microseconds(5), std::chrono::microseconds(1000));
    const std::lock_guard lock(mutex_);
    if (!is_open_) return interrupted();
    if (const NcclResult asked = functions_.async_error(*place_, &result); asked != kNcclSuccess) {
      result = asked;
    }
    if (result != kNcclSuccess && result != kNcclInProgress) {
      return "NCCL: " + functions_.words(result, *place_);
    }
  }
  return "";
}

NcclHandle Handle::take() noexcept {
  // A thread that hangs in NCCL with the lock is what abort is there to free.
  std::unique_lock lock(mutex_, std::defer_lock);
  const auto until = steady_clock::now() + bound() / 2;
  while (!lock.try_lock() && steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  return is_open_.exchange(false) ? *place_ : nullptr;
}

void Handle::end_with(NcclResult (*function)(NcclHandle), HandlePlace also_in_use) noexcept {
  const NcclHandle handle = take();
  if (handle == nullptr) return;
  // All that it needs goes along: it may outlive us.
  call_within(bound(), [=, device = device_, place = place_, also = std::move(also_in_use)] {
    try {
      device->make_current();
    } catch (const std::exception&) {  // a lost device does not keep NCCL from ending
    }
    function(handle);
  });
}

void Handle::abort(HandlePlace also_in_use) noexcept {
  end_with(functions_.abort, std::move(also_in_use));
}

void Handle::close() noexcept {
  if (!is_open_ || *place_ == nullptr) return;
  std::string failed;
  try {
    failed = call([&](NcclHandle handle) { return functions_.finalize(handle); },
                  [] { return "aborted"; });
  } catch (const std::exception& error) {
    failed = error.what();
  }
  failed.empty() ? end_with(functions_.destroy) : abort();
}

class Nccl final : public Communicator {
 public:
  Nccl(std::unique_ptr<Handle> handle, int rank, int size, Settings settings,
       std::shared_ptr<PeerSum> peer_sum = nullptr)
      : Communicator(rank, size, settings),
        handle_(std::move(handle)),
        peer_sum_(std::move(peer_sum)) {}
  // What failed has no good end to wait for.
  ~Nccl() override { failure().empty() ? handle_->close() : end_all(); }

  std::string engine() const override {
    return fmt::format("nccl {}{}", nccl_version_text(handle_->functions().version),
                       peer_sum_ ? ", small sums in peer memory" : "");
  }
  bool launches_dependents(int64_t count, DType dtype, Reduction reduction) const override {
    return peer_sum_ && peer_sum_->launches_dependents() &&
           peer_sum_->takes(count, dtype, reduction);
  }
  Support supports(DType dtype, Reduction reduction) const override {
    return type_of(dtype, reduction).answer;
  }
  void abort(const std::string& reason) override {
    fail(fmt::format("rank {} was aborted, it {}: {}", rank(), progress().text(), reason));
    end_all();
  }

 protected:
  void do_all_reduce(const void* in, void* out, int64_t count, DType dtype, Reduction reduction,
                     void* stream) override;
  void do_all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                     void* stream) override;
  void do_reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                         Reduction reduction, void* stream) override;
  void do_broadcast(const void* in, void* out, int64_t count, DType dtype, int root,
                    void* stream) override;
  void do_all_to_all(const void* in, void* out, int64_t count, DType dtype, void* stream) override;
  void do_permute(const void* in, void* out, int64_t count, DType dtype,
                  std::span<const std::pair<int, int>> pairs, void* stream) override;
  void do_send(const void* in, int64_t count, DType dtype, int to, void* stream) override;
  void do_receive(void* out, int64_t count, DType dtype, int from, void* stream) override;
  void do_barrier(void* stream) override;
  std::unique_ptr<Communicator> do_split(std::span<const std::vector<int>> groups,
                                         const std::vector<int>* group) override;

 private:
  const NcclFunctions& functions() const { return handle_->functions(); }
  NcclType type_of(DType dtype, Reduction reduction) const {
    return nccl_type(dtype, reduction, handle_->device().compute_major() >= 9);
  }
  void put(const std::function<NcclResult(NcclHandle)>& put);
  // Calls that NCCL makes together, of which it stops at the first that fails.
  using GroupedCalls = std::vector<std::function<NcclResult(NcclHandle)>>;
  void put_together(const GroupedCalls& calls);
  [[noreturn]] void give_up(const std::string& why, const HandlePlace& also_in_use = nullptr);

  void end_all(const HandlePlace& also_in_use = nullptr) noexcept {
    if (peer_sum_) peer_sum_->abort();
    handle_->abort(also_in_use);
  }

  const std::unique_ptr<Handle> handle_;
  const std::shared_ptr<PeerSum> peer_sum_;  // null: NCCL sums everything
};

void Nccl::give_up(const std::string& why, const HandlePlace& also_in_use) {
  end_all(also_in_use);
  const std::string aborted = failure();
  throw CollectiveError(aborted.empty() ? fmt::format("{} on rank {} of {}: {}", current().text(),
                                                      rank(), size(), why)
                                        : aborted);
}

void Nccl::put(const std::function<NcclResult(NcclHandle)>& put) {
  const std::string wrong = handle_->call(put, [&] { return failure(); });
  if (!wrong.empty()) give_up(wrong);
}

void Nccl::put_together(const GroupedCalls& calls) {
  if (calls.empty()) return;
  put([&](NcclHandle handle) {
    NcclResult result = functions().group_start();
    if (result != kNcclSuccess) return result;
    for (const auto& call : calls) {
      result = call(handle);
      if (result != kNcclSuccess && result != kNcclInProgress) break;
    }
    // Ended in any case: the group is this thread's, and would swallow all that it calls later.
    const NcclResult ended = functions().group_end();
    return result == kNcclSuccess || result == kNcclInProgress ? ended : result;
  });
}

void Nccl::do_all_reduce(const void* in, void* out, int64_t count, DType dtype, Reduction reduction,
                         void* stream) {
  if (peer_sum_ && peer_sum_->takes(count, dtype, reduction)) {
    return peer_sum_->put(in, out, count, dtype, static_cast<device::StreamHandle>(stream));
  }
  put([&](NcclHandle handle) {
    return functions().all_reduce(in, out, static_cast<size_t>(count),
                                  type_of(dtype, reduction).code, nccl_reduction(reduction), handle,
                                  stream);
  });
}

void Nccl::do_all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                         void* stream) {
  if (are_equal(counts)) {
    return put([&](NcclHandle handle) {
      return functions().all_gather(in, out, storage_bytes(dtype, counts[0]), kNcclBytes, handle,
                                    stream);
    });
  }
  GroupedCalls broadcasts;
  size_t begin = 0;
  for (int root = 0; root < size(); ++root) {
    const size_t bytes = storage_bytes(dtype, counts[root]);
    void* part = at(out, begin);
    begin += bytes;
    if (bytes == 0) continue;
    broadcasts.push_back([=, this](NcclHandle handle) {
      return functions().broadcast(root == rank() ? in : part, part, bytes, kNcclBytes, root,
                                   handle, stream);
    });
  }
  put_together(broadcasts);
}

void Nccl::do_reduce_scatter(const void* in, void* out, std::span<const int64_t> counts,
                             DType dtype, Reduction reduction, void* stream) {
  const int type = type_of(dtype, reduction).code, operation = nccl_reduction(reduction);
  if (are_equal(counts)) {
    return put([&](NcclHandle handle) {
      return functions().reduce_scatter(in, out, static_cast<size_t>(counts[0]), type, operation,
                                        handle, stream);
    });
  }
  GroupedCalls reduces;
  size_t begin = 0;
  for (int root = 0; root < size(); ++root) {
    const void* part = at(in, begin);
    const auto count = static_cast<size_t>(counts[root]);
    begin += storage_bytes(dtype, counts[root]);
    if (count == 0) continue;
    reduces.push_back([=, this](NcclHandle handle) {
      return functions().reduce(part, root == rank() ? out : nullptr, count, type, operation, root,
                                handle, stream);
    });
  }
  put_together(reduces);
}

void Nccl::do_broadcast(const void* in, void* out, int64_t count, DType dtype, int root,
                        void* stream) {
  put([&](NcclHandle handle) {
    return functions().broadcast(rank() == root ? in : out, out, storage_bytes(dtype, count),
                                 kNcclBytes, root, handle, stream);
  });
}

void Nccl::do_all_to_all(const void* in, void* out, int64_t count, DType dtype, void* stream) {
  const size_t bytes = storage_bytes(dtype, count);
  if (functions().all_to_all != nullptr) {
    return put([&](NcclHandle handle) {
      return functions().all_to_all(in, out, bytes, kNcclBytes, handle, stream);
    });
  }
  GroupedCalls messages;
  for (int peer = 0; peer < size(); ++peer) {
    const size_t begin = static_cast<size_t>(peer) * bytes;
    messages.push_back([=, this](NcclHandle handle) {
      return functions().send(at(in, begin), bytes, kNcclBytes, peer, handle, stream);
    });
    messages.push_back([=, this](NcclHandle handle) {
      return functions().receive(at(out, begin), bytes, kNcclBytes, peer, handle, stream);
    });
  }
  put_together(messages);
}

void Nccl::do_permute(const void* in, void* out, int64_t count, DType dtype,
                      std::span<const std::pair<int, int>> pairs, void* stream) {
  const size_t bytes = storage_bytes(dtype, count);
  GroupedCalls messages;
  bool has_source = false;
  for (const auto& pair : pairs) {
    const int source = pair.first, target = pair.second;
    if (source == rank()) {
      messages.push_back([=, this](NcclHandle handle) {
        return functions().send(in, bytes, kNcclBytes, target, handle, stream);
      });
    }
    if (target == rank()) {
      has_source = true;
      messages.push_back([=, this](NcclHandle handle) {
        return functions().receive(out, bytes, kNcclBytes, source, handle, stream);
      });
    }
  }
  if (!has_source) handle_->device().fill_zeros(out, bytes, stream);
  put_together(messages);
}

void Nccl::do_send(const void* in, int64_t count, DType dtype, int to, void* stream) {
  put([&](NcclHandle handle) {
    return functions().send(in, storage_bytes(dtype, count), kNcclBytes, to, handle, stream);
  });
}

void Nccl::do_receive(void* out, int64_t count, DType dtype, int from, void* stream) {
  put([&](NcclHandle handle) {
    return functions().receive(out, storage_bytes(dtype, count), kNcclBytes, from, handle, stream);
  });
}

void Nccl::do_barrier(void* stream) {
  void* scratch = handle_->device().scratch();
  put([&](NcclHandle handle) {
    return functions().all_reduce(scratch, scratch, 1, kNcclBytes, nccl_reduction(Reduction::kMax),
                                  handle, stream);
  });
}

std::unique_ptr<Communicator> Nccl::do_split(std::span<const std::vector<int>> groups,
                                             const std::vector<int>* group) {
  constexpr int kNoColor = -1;
  const int color = group == nullptr ? kNoColor : static_cast<int>(group - groups.data());
  const int place =
      group == nullptr ? 0 : static_cast<int>(std::ranges::find(*group, rank()) - group->begin());
  const auto made = std::make_shared<NcclHandle>(nullptr);
  const std::string wrong = handle_->call(
      [&](NcclHandle handle) {
        // Of communicators that do not block NCCL says that it has succeeded before it has: what it
        // came to, the whole tells.
        const NcclResult put = functions().split(handle, color, place, made.get(), nullptr);
        return put == kNcclSuccess ? kNcclInProgress : put;
      },
      [&] { return failure(); });
  if (!wrong.empty()) give_up(wrong, made);
  if (group == nullptr) return nullptr;
  if (*made == nullptr) give_up("NCCL made no communicator for the group");
  auto handle =
      std::make_unique<Handle>(functions(), handle_->shared_device(), settings().deadline);
  handle->adopt(made);
  return std::make_unique<Nccl>(std::move(handle), place, static_cast<int>(group->size()),
                                settings());
}

}  // namespace

NcclId make_nccl_id(const NcclFunctions& functions) {
  NcclId id;
  if (const NcclResult result = functions.get_unique_id(&id); result != kNcclSuccess) {
    throw CollectiveError("NCCL makes no id: " + functions.words(result, nullptr));
  }
  return id;
}

std::unique_ptr<Communicator> make_nccl(const NcclFunctions& functions, const NcclId& id, int rank,
                                        int size, std::shared_ptr<RankDevice> device,
                                        const NcclSettings& settings) {
  NcclConfig config;
  config.blocking = 0;
  if (const auto most =
          nccl_max_ctas(functions.version, device->compute_major(), settings.max_ctas)) {
    config.max_ctas = *most;
  }
  auto handle = std::make_unique<Handle>(functions, std::move(device), settings.common.deadline);
  Handle& nccl = *handle;
  // Checks rank, size and deadline before NCCL hears of them.
  auto made =
      std::make_unique<Nccl>(std::move(handle), rank, size, settings.common, settings.peer_sum);
  const std::string wrong =
      nccl.call([&](NcclHandle) { return functions.init(nccl.place(), size, id, rank, &config); },
                [] { return "aborted"; });
  if (!wrong.empty()) {
    nccl.abort();
    throw CollectiveError(
        fmt::format("a communicator of {} ranks, as rank {}: {}", size, rank, wrong));
  }
  return made;
}

}  // namespace tenon::distributed
