#include "tests/distributed/staged_ranks.h"

#include <numeric>

namespace tenon::distributed {
namespace {

device::Address address_of(const void* memory) { return reinterpret_cast<device::Address>(memory); }

class Staged final : public Communicator {
 public:
  Staged(std::unique_ptr<Communicator> ranks, std::shared_ptr<device::Device> device)
      : Communicator(ranks->rank(), ranks->size(), {}),
        ranks_(std::move(ranks)),
        device_(std::move(device)),
        stream_(device_) {}

  std::string engine() const override { return ranks_->engine(); }
  Support supports(DType dtype, Reduction reduction) const override {
    return ranks_->supports(dtype, reduction);
  }
  Support supports_call(std::string_view call) const override {
    return ranks_->supports_call(call);
  }
  Support supports_groups(std::span<const std::vector<int>> groups) const override {
    return ranks_->supports_groups(groups);
  }
  void abort(const std::string& reason) override { ranks_->abort(reason); }

 protected:
  void do_all_reduce(const void* in, void* out, int64_t count, DType dtype, Reduction reduction,
                     void*) override {
    staged(in, count, out, count, dtype, [&](void* from, void* to, void* stream) {
      ranks_->all_reduce(from, to, count, dtype, reduction, stream);
    });
  }
  void do_all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                     void*) override {
    staged(in, counts[rank()], out, sum(counts), dtype, [&](void* from, void* to, void* stream) {
      ranks_->all_gather(from, to, counts, dtype, stream);
    });
  }
  void do_reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                         Reduction reduction, void*) override {
    staged(in, sum(counts), out, counts[rank()], dtype, [&](void* from, void* to, void* stream) {
      ranks_->reduce_scatter(from, to, counts, dtype, reduction, stream);
    });
  }
  void do_broadcast(const void* in, void* out, int64_t count, DType dtype, int root,
                    void*) override {
    staged(rank() == root ? in : nullptr, count, out, count, dtype,
           [&](void* from, void* to, void* stream) {
             ranks_->broadcast(from, to, count, dtype, root, stream);
           });
  }
  void do_all_to_all(const void* in, void* out, int64_t count, DType dtype, void*) override {
    staged(in, count * size(), out, count * size(), dtype, [&](void* from, void* to, void* stream) {
      ranks_->all_to_all(from, to, count, dtype, stream);
    });
  }
  void do_permute(const void* in, void* out, int64_t count, DType dtype,
                  std::span<const std::pair<int, int>> pairs, void*) override {
    staged(in, count, out, count, dtype, [&](void* from, void* to, void* stream) {
      ranks_->permute(from, to, count, dtype, pairs, stream);
    });
  }
  void do_send(const void* in, int64_t count, DType dtype, int to_rank, void*) override {
    staged(in, count, nullptr, 0, dtype, [&](void* from, void*, void* stream) {
      ranks_->send(from, count, dtype, to_rank, stream);
    });
  }
  void do_receive(void* out, int64_t count, DType dtype, int from_rank, void*) override {
    staged(nullptr, 0, out, count, dtype, [&](void*, void* to, void* stream) {
      ranks_->receive(to, count, dtype, from_rank, stream);
    });
  }
  void do_barrier(void*) override {
    ranks_->barrier(stream_.handle());
    stream_.synchronize(settings().deadline);
  }
  std::unique_ptr<Communicator> do_split(std::span<const std::vector<int>> groups,
                                         const std::vector<int>*) override {
    auto made = ranks_->split(groups);
    return made == nullptr ? nullptr : make_staged(std::move(made), device_);
  }

 private:
  static int64_t sum(std::span<const int64_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }

  void staged(const void* in, int64_t in_count, void* out, int64_t out_count, DType dtype,
              const std::function<void(void* from, void* to, void* stream)>& call) {
    const size_t in_bytes = storage_bytes(dtype, in_count);
    const size_t out_bytes = storage_bytes(dtype, out_count);
    // A byte more, so that no buffer is empty.
    const device::Buffer from(device_, in_bytes + 1, "a test"),
        to(device_, out_bytes + 1, "a test");
    if (in != nullptr) stream_.copy(from.address(), address_of(in), in_bytes);
    call(reinterpret_cast<void*>(from.address()), reinterpret_cast<void*>(to.address()),
         stream_.handle());
    if (out != nullptr) stream_.copy(address_of(out), to.address(), out_bytes);
    stream_.synchronize(settings().deadline);
  }

  const std::unique_ptr<Communicator> ranks_;
  const std::shared_ptr<device::Device> device_;
  device::Stream stream_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged(std::unique_ptr<Communicator> ranks,
                                          std::shared_ptr<device::Device> device) {
  return std::make_unique<Staged>(std::move(ranks), std::move(device));
}

}  // namespace tenon::distributed
