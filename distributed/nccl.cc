#include "distributed/nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "distributed/nccl_handle.h"
#include "distributed/nccl_memory.h"

namespace tenon::distributed {
namespace {

const char* at(const void* memory, size_t bytes) {
  return static_cast<const char*>(memory) + bytes;
}
char* at(void* memory, size_t bytes) { return static_cast<char*>(memory) + bytes; }

bool are_equal(std::span<const int64_t> counts) {
  return std::ranges::adjacent_find(counts, std::ranges::not_equal_to()) == counts.end();
}

class Nccl final : public Communicator {
 public:
  Nccl(std::shared_ptr<NcclCommunicatorHandle> handle, int rank, int size, Settings settings,
       PeerSum::Answer peers = {})
      : Communicator(rank, size, settings),
        handle_(std::move(handle)),
        peer_sum_(std::move(peers.sum)),
        no_peers_(std::move(peers.reason)) {}
  // What failed has no good end to wait for.
  ~Nccl() override { failure().empty() ? handle_->close() : end_all(); }

  std::string engine() const override {
    std::string text = "nccl " + nccl_version_text(handle_->functions().version);
    if (peer_sum_) text += ", small sums in peer memory";
    if (!no_peers_.empty()) text += fmt::format(" (no peer memory: {})", no_peers_);
    return text;
  }
  bool needs_order() const override { return peer_sum_ != nullptr; }
  bool launches_dependents(int64_t count, DType dtype, Reduction reduction) const override {
    return peer_sum_ && peer_sum_->launches_dependents() &&
           peer_sum_->takes(count, dtype, reduction);
  }
  Support supports(DType dtype, Reduction reduction) const override {
    return type_of(dtype, reduction).answer;
  }
  std::unique_ptr<EngineMemory> allocate(size_t bytes) override {
    return std::make_unique<NcclMemory>(handle_, bytes);
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
  Support do_register_memory(EngineMemory& memory) override;

 private:
  const NcclFunctions& functions() const { return handle_->functions(); }
  NcclType type_of(DType dtype, Reduction reduction) const {
    return nccl_type(dtype, reduction, handle_->device().compute_major() >= 9);
  }
  void put(const std::function<NcclResult(NcclHandle)>& put);
  // Calls that NCCL makes together, of which it stops at the first that fails.
  using GroupedCalls = std::vector<std::function<NcclResult(NcclHandle)>>;
  void put_together(const GroupedCalls& calls);
  [[noreturn]] void give_up(const std::string& why, std::shared_ptr<void> also_in_use = nullptr);

  void end_all(std::shared_ptr<void> also_in_use = nullptr) noexcept {
    if (peer_sum_) peer_sum_->abort();
    handle_->abort(std::move(also_in_use));
  }

  const std::shared_ptr<NcclCommunicatorHandle> handle_;
  const std::unique_ptr<PeerSum> peer_sum_;  // null: NCCL sums everything
  const std::string no_peers_;               // why, where it was tried
};

void Nccl::give_up(const std::string& why, std::shared_ptr<void> also_in_use) {
  end_all(std::move(also_in_use));
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
  auto handle = std::make_shared<NcclCommunicatorHandle>(functions(), handle_->shared_device(),
                                                         settings().deadline);
  handle->adopt(made);
  return std::make_unique<Nccl>(std::move(handle), place, static_cast<int>(group->size()),
                                settings());
}

Support Nccl::do_register_memory(EngineMemory& memory) {
  auto& mine = dynamic_cast<NcclMemory&>(memory);
  const std::string wrong = mine.register_window([&] { return failure(); });
  if (!wrong.empty()) give_up(wrong, mine.window_place());
  if (mine.has_window()) return Support::yes();
  return Support::no(
      "NCCL has no windows here: its GPUs do not reach each other's memory, or "
      "NCCL_WIN_ENABLE or NCCL_CUMEM_ENABLE is 0");
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
                                        const NcclSettings& settings, PeerSum::Answer peers) {
  NcclConfig config(functions.version);
  config.blocking = 0;
  if (!settings.mixes_graphs) config.graph_usage_mode = 1;
  if (const auto most =
          nccl_max_ctas(functions.version, device->compute_major(), settings.max_ctas)) {
    config.max_ctas = *most;
  }
  auto handle = std::make_shared<NcclCommunicatorHandle>(functions, std::move(device),
                                                         settings.common.deadline);
  NcclCommunicatorHandle& nccl = *handle;
  // Checks rank, size and deadline before NCCL hears of them.
  auto made =
      std::make_unique<Nccl>(std::move(handle), rank, size, settings.common, std::move(peers));
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
