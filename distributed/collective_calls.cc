#include "distributed/collective_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace tenon::distributed {
namespace {

// The ranks of each group, in order.
std::vector<std::vector<int>> groups_of(const ir::Collective& collective) {
  std::vector<std::vector<int>> groups(1);
  for (const int64_t rank : collective.groups) {
    if (rank == -1) {
      groups.emplace_back();
    } else {
      groups.back().push_back(static_cast<int>(rank));
    }
  }
  return groups;
}

// Elements that each rank of a group has of a tensor.
std::vector<int64_t> counts_of(const ir::Collective& collective, int64_t part, int64_t row) {
  if (collective.parts.empty()) return std::vector<int64_t>(collective.ranks, part);
  std::vector<int64_t> counts;
  for (const int64_t rows : collective.parts) counts.push_back(rows * row);
  return counts;
}

class CollectiveCallOf : public kernels::LibraryCall {
 public:
  CollectiveCallOf(ir::Collective collective, DType dtype, Reduction reduction,
                   std::shared_ptr<Communicator> ranks)
      : collective_(std::move(collective)),
        dtype_(dtype),
        reduction_(reduction),
        ranks_(std::move(ranks)) {
    for (size_t i = 0; i + 1 < collective_.pairs.size(); i += 2) {
      pairs_.emplace_back(collective_.pairs[i], collective_.pairs[i + 1]);
    }
  }

  std::string name() const override { return collective_.op.substr(collective_.op.rfind(':') + 1); }
  bool is_collective() const override { return true; }
  std::span<const int64_t> groups() const override { return collective_.groups; }

  bool may_launch_dependents() const override { return launches_dependents({{0}}); }
  bool launches_dependents(std::span<const int64_t> numbers) const override {
    return collective_.op == ir::kAllReduce &&
           ranks_->launches_dependents(numbers[0], dtype_, reduction_);
  }

  void enqueue(void* stream, std::span<void* const> buffers,
               std::span<const int64_t> numbers) const override {
    const void* in = buffers[0];
    void* out = buffers[1];
    const int64_t count = numbers[0], row = numbers[1];
    const std::string_view op = collective_.op;
    if (op == ir::kAllReduce) {
      ranks_->all_reduce(in, out, count, dtype_, reduction_, stream);
    } else if (op == ir::kAllGather) {
      ranks_->all_gather(in, out, counts_of(collective_, count, row), dtype_, stream);
    } else if (op == ir::kReduceScatter) {
      ranks_->reduce_scatter(in, out, counts_of(collective_, count / collective_.ranks, row),
                             dtype_, reduction_, stream);
    } else if (op == ir::kAllToAll) {
      ranks_->all_to_all(in, out, count / collective_.ranks, dtype_, stream);
    } else if (op == ir::kBroadcast) {
      ranks_->broadcast(in, out, count, dtype_, static_cast<int>(collective_.root), stream);
    } else {
      ranks_->permute(in, out, count, dtype_, pairs_, stream);
    }
  }

 private:
  const ir::Collective collective_;
  const DType dtype_;
  const Reduction reduction_;
  const std::shared_ptr<Communicator> ranks_;
  std::vector<std::pair<int, int>> pairs_;
};

class CommunicatorCollectives : public kernels::Collectives {
 public:
  explicit CommunicatorCollectives(std::shared_ptr<Communicator> all) : all_(std::move(all)) {}

  int rank() const override { return all_->rank(); }
  int ranks() const override { return all_->size(); }
  std::string engine() const override { return all_->engine(); }

  Support supports(const ir::Collective& collective, DType dtype) const override {
    if (Support numbers = ir::check(collective); !numbers) return numbers;
    if (Support ranks = fits(collective); !ranks) return ranks;
    if (Support moved = can_move(dtype, 8); !moved) return moved;
    if (collective.op == ir::kAllToAll && !collective.parts.empty()) {
      return Support::no("an all-to-all of parts of different sizes is not supported");
    }
    if (collective.op != ir::kAllReduce && collective.op != ir::kReduceScatter) {
      return Support::yes();
    }
    const Reduction reduction = *parse_reduction(collective.reduction);
    if (Support defined = can_reduce(dtype, reduction); !defined) return defined;
    return all_->supports(dtype, reduction);
  }

  std::shared_ptr<const kernels::LibraryCall> make_call(const ir::Collective& collective,
                                                        DType dtype) const override {
    ir::Collective whole = collective;
    std::shared_ptr<Communicator> ranks = group_of(collective);
    whole.ranks = ranks->size();
    return std::make_shared<CollectiveCallOf>(
        std::move(whole), dtype, *parse_reduction(collective.reduction), std::move(ranks));
  }

 private:
  Support fits(const ir::Collective& collective) const {
    const int64_t in_groups =
        collective.groups.empty()
            ? collective.ranks
            : std::ranges::count_if(collective.groups, [](int64_t rank) { return rank >= 0; });
    if (in_groups == ranks() || (collective.groups.empty() && collective.ranks == 0)) {
      const bool has_all =
          std::ranges::all_of(collective.groups, [&](int64_t rank) { return rank < ranks(); });
      if (has_all) return Support::yes();
    }
    return Support::no(fmt::format(
        "it is for {} ranks, and this job has {}: launch as many as the model was made for",
        in_groups, ranks()));
  }

  std::shared_ptr<Communicator> group_of(const ir::Collective& collective) const {
    if (collective.groups.empty()) return all_;
    const std::vector<std::vector<int>> groups = groups_of(collective);
    if (groups.size() == 1 && std::ranges::is_sorted(groups[0])) return all_;
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Communicator>& group = groups_[collective.groups];
    if (!group) group = all_->split(groups);
    if (!group) throw InternalError("a rank is in no group of a collective that it calls");
    return group;
  }

  const std::shared_ptr<Communicator> all_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<int64_t>, std::shared_ptr<Communicator>> groups_;
};

}  // namespace

std::shared_ptr<const kernels::Collectives> make_collectives(
    std::shared_ptr<Communicator> communicator) {
  return std::make_shared<CommunicatorCollectives>(std::move(communicator));
}

}  // namespace tenon::distributed
