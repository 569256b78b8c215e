#include "tests/distributed/check_collectives.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/distributed/rank_data.h"

namespace tenon::distributed {
namespace {

// The part of one rank's work that all checks share. Packed types are given whole bytes.
struct Checked {
  Communicator& ranks;
  DType dtype;
  int64_t count;
  uint64_t seed;

  std::vector<Bytes> inputs(int64_t elements) const {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      inputs.push_back(random_elements(dtype, elements, seed * 64 + rank));
    }
    return inputs;
  }
  size_t bytes(int64_t elements) const { return storage_bytes(dtype, elements); }
  std::string about() const {
    return std::string(name(dtype)) + " on rank " + std::to_string(ranks.rank()) + " of " +
           std::to_string(ranks.size());
  }

  // Uneven, with a rank that brings nothing where there is more than one.
  std::vector<int64_t> uneven() const {
    std::vector<int64_t> counts(ranks.size());
    for (int rank = 0; rank < ranks.size(); ++rank) {
      counts[rank] = rank % 3 == 1 ? 0 : count + 4 * rank;
    }
    return counts;
  }

  void all_reduce(Reduction reduction) const {
    const auto in = inputs(count);
    Bytes out(bytes(count)), same = in[ranks.rank()];
    ranks.all_reduce(in[ranks.rank()].data(), out.data(), count, dtype, reduction, nullptr);
    EXPECT_EQ(wrong_reduction(dtype, reduction, in, 0, out.data(), count), "") << about();
    ranks.all_reduce(same.data(), same.data(), count, dtype, reduction, nullptr);
    EXPECT_EQ(same, out) << "in place, " << about();
    // Not one bit may differ between ranks.
    Bytes first = out;
    ranks.broadcast(first.data(), first.data(), count, dtype, 0, nullptr);
    EXPECT_EQ(first, out) << about();
  }

  void reduce_scatter(const std::vector<int64_t>& counts, Reduction reduction) const {
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t mine = counts[ranks.rank()];
    const int64_t begin =
        std::accumulate(counts.begin(), counts.begin() + ranks.rank(), int64_t{0});
    auto in = inputs(sum);
    Bytes out(bytes(mine));
    ranks.reduce_scatter(in[ranks.rank()].data(), out.data(), counts, dtype, reduction, nullptr);
    EXPECT_EQ(wrong_reduction(dtype, reduction, in, begin, out.data(), mine), "") << about();
    unsigned char* same = in[ranks.rank()].data();
    ranks.reduce_scatter(same, same + bytes(begin), counts, dtype, reduction, nullptr);
    EXPECT_TRUE(mine == 0 || std::memcmp(same + bytes(begin), out.data(), bytes(mine)) == 0)
        << "in place, " << about();
  }

  void all_gather(const std::vector<int64_t>& counts) const {
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const auto in = inputs(count + 4 * ranks.size());
    Bytes wanted;
    size_t begin = 0;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      if (rank == ranks.rank()) begin = wanted.size();
      wanted.insert(wanted.end(), in[rank].begin(), in[rank].begin() + bytes(counts[rank]));
    }
    Bytes out(bytes(sum));
    ranks.all_gather(in[ranks.rank()].data(), out.data(), counts, dtype, nullptr);
    EXPECT_EQ(out, wanted) << about();
    Bytes same(bytes(sum));
    const size_t mine = bytes(counts[ranks.rank()]);
    if (mine > 0) std::memcpy(&same[begin], in[ranks.rank()].data(), mine);
    ranks.all_gather(same.data() + begin, same.data(), counts, dtype, nullptr);
    EXPECT_EQ(same, wanted) << "in place, " << about();
  }

  void broadcast(int root) const {
    const auto in = inputs(count);
    Bytes out(bytes(count)), same = in[ranks.rank()];
    const bool is_root = ranks.rank() == root;
    ranks.broadcast(is_root ? in[root].data() : nullptr, out.data(), count, dtype, root, nullptr);
    EXPECT_EQ(out, in[root]) << about();
    ranks.broadcast(same.data(), same.data(), count, dtype, root, nullptr);
    EXPECT_EQ(same, in[root]) << "in place, " << about();
  }

  void all_to_all() const {
    const auto in = inputs(count * ranks.size());
    const size_t part = bytes(count);
    Bytes out(part * ranks.size()), wanted;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const auto begin = in[rank].begin() + static_cast<ptrdiff_t>(part * ranks.rank());
      wanted.insert(wanted.end(), begin, begin + static_cast<ptrdiff_t>(part));
    }
    ranks.all_to_all(in[ranks.rank()].data(), out.data(), count, dtype, nullptr);
    EXPECT_EQ(out, wanted) << about();
  }

  // Round by `step`; without the last pair one rank has no source and one no target.
  void permute(int step, bool whole) const {
    const auto in = inputs(count);
    std::vector<std::pair<int, int>> pairs;
    int source = -1;
    for (int rank = 0; rank + (whole ? 0 : 1) < ranks.size(); ++rank) {
      pairs.emplace_back(rank, (rank + step) % ranks.size());
      if (pairs.back().second == ranks.rank()) source = rank;
    }
    Bytes out(bytes(count), 0xee);
    ranks.permute(in[ranks.rank()].data(), out.data(), count, dtype, pairs, nullptr);
    EXPECT_EQ(out, source < 0 ? Bytes(bytes(count), 0) : in[source]) << about();
  }

  // From each even rank to the next one and back.
  void send_and_receive() const {
    const int rank = ranks.rank(), peer = rank ^ 1;
    if (peer >= ranks.size()) return;
    const auto in = inputs(count);
    Bytes out(bytes(count));
    for (const bool first : {true, false}) {
      if ((rank < peer) == first) {
        ranks.send(in[rank].data(), count, dtype, peer, nullptr);
      } else {
        ranks.receive(out.data(), count, dtype, peer, nullptr);
      }
    }
    EXPECT_EQ(out, in[peer]) << about();
  }
};

}  // namespace

void check_collectives(Communicator& ranks, DType dtype, int64_t count, uint64_t seed) {
  if (is_packed(dtype)) count += -count & 3;
  const Checked check{ranks, dtype, count, seed};
  const std::vector<int64_t> even(ranks.size(), count), uneven = check.uneven();
  const auto has = [&](std::string_view call) { return ranks.supports_call(call).ok; };
  for (const Reduction reduction : kReductions) {
    if (!can_reduce(dtype, reduction) || !ranks.supports(dtype, reduction)) continue;
    check.all_reduce(reduction);
    if (!has("reduce_scatter")) continue;
    check.reduce_scatter(even, reduction);
    check.reduce_scatter(uneven, reduction);
  }
  if (has("all_gather")) check.all_gather(even);
  if (has("all_gather")) check.all_gather(uneven);
  check.broadcast(0);
  check.broadcast(ranks.size() - 1);
  if (has("all_to_all")) check.all_to_all();
  if (has("permute")) {
    check.permute(1, true);
    check.permute(1, false);
    check.permute(0, true);
  }
  if (has("send") && has("receive")) check.send_and_receive();
  ranks.barrier(nullptr);
}

}  // namespace tenon::distributed
