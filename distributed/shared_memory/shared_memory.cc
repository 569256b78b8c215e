#include "distributed/shared_memory/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "distributed/element_ops.h"
#include "distributed/shared_memory/connect.h"
#include "distributed/shared_memory/steps.h"

namespace tenon::distributed {
namespace {

constexpr size_t kStep = SharedSteps::kStepBytes;
// Up to here every rank reduces all of an all_reduce: one wait instead of two.
constexpr size_t kMaxWhole = 16 * 1024;

const char* at(const void* memory, size_t byte) { return static_cast<const char*>(memory) + byte; }
char* at(void* memory, size_t byte) { return static_cast<char*>(memory) + byte; }

// They may be the same memory.
void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// What of [begin, begin + most) lies before the end.
size_t piece(size_t begin, size_t most, size_t end) {
  return begin >= end ? 0 : std::min(most, end - begin);
}

std::vector<size_t> bytes_of(std::span<const int64_t> counts, DType dtype) {
  std::vector<size_t> bytes;
  for (const int64_t count : counts) bytes.push_back(storage_bytes(dtype, count));
  return bytes;
}

std::vector<size_t> begins_of(const std::vector<size_t>& bytes) {
  std::vector<size_t> begins(bytes.size());
  std::exclusive_scan(bytes.begin(), bytes.end(), begins.begin(), size_t{0});
  return begins;
}

class SharedMemory final : public Communicator {
 public:
  SharedMemory(SharedSegment segment, KeyValues store, SegmentMembers members, Settings settings)
      : Communicator(members.rank, static_cast<int>(members.store_ranks.size()), settings),
        steps_(std::move(segment), rank(), size(), settings.deadline),
        store_(std::move(store)),
        members_(std::move(members)),
        inputs_(size()) {}

  std::string engine() const override { return "shm"; }

  void abort(const std::string& reason) override {
    fail(fmt::format("rank {} was aborted, it {}: {}", rank(), progress().text(), reason));
    steps_.fail(failure());
  }

 protected:
  void do_all_reduce(const void* in, void* out, int64_t count, DType dtype, Reduction reduction,
                     void*) override {
    const CollectiveCall call = current();
    const size_t bytes = storage_bytes(dtype, count);
    if (bytes <= kMaxWhole) {
      std::memcpy(steps_.mine(), in, bytes);
      steps_.meet(call);
      reduce(in, 0, out, count, dtype, reduction);
      return;
    }
    for (size_t begin = 0; begin < bytes; begin += kStep) {
      reduce_in_parts(call, at(in, begin), at(out, begin), piece(begin, kStep, bytes), dtype,
                      reduction);
    }
  }

  void do_all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                     void*) override {
    const CollectiveCall call = current();
    const std::vector<size_t> bytes = bytes_of(counts, dtype), begins = begins_of(bytes);
    for (size_t done = 0; done < std::ranges::max(bytes); done += kStep) {
      copy(steps_.mine(), at(in, done), piece(done, kStep, bytes[rank()]));
      steps_.meet(call);
      for (int other = 0; other < size(); ++other) {
        if (other == rank()) continue;
        copy(at(out, begins[other] + done), steps_.of(other), piece(done, kStep, bytes[other]));
      }
    }
    copy(at(out, begins[rank()]), in, bytes[rank()]);
  }

  void do_reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                         Reduction reduction, void*) override {
    const CollectiveCall call = current();
    const std::vector<size_t> bytes = bytes_of(counts, dtype), begins = begins_of(bytes);
    const size_t element = storage_bytes(dtype, 1);
    for (size_t done = 0; done < std::ranges::max(bytes); done += room()) {
      bring_rooms(call, [&](int to) {
        return std::pair(at(in, begins[to] + done), piece(done, room(), bytes[to]));
      });
      reduce(at(in, begins[rank()] + done), room() * rank(), at(out, done),
             static_cast<int64_t>(piece(done, room(), bytes[rank()]) / element), dtype, reduction);
    }
  }

  void do_broadcast(const void* in, void* out, int64_t count, DType dtype, int root,
                    void*) override {
    const CollectiveCall call = current();
    const size_t bytes = storage_bytes(dtype, count);
    for (size_t done = 0; done < bytes; done += kStep) {
      const size_t now = piece(done, kStep, bytes);
      if (rank() == root) copy(steps_.mine(), at(in, done), now);
      steps_.meet(call);
      if (rank() != root) copy(at(out, done), steps_.of(root), now);
    }
    if (rank() == root) copy(out, in, bytes);
  }

  void do_all_to_all(const void* in, void* out, int64_t count, DType dtype, void*) override {
    const CollectiveCall call = current();
    const size_t bytes = storage_bytes(dtype, count);
    for (size_t done = 0; done < bytes; done += room()) {
      const size_t now = piece(done, room(), bytes);
      bring_rooms(call, [&](int to) { return std::pair(at(in, bytes * to + done), now); });
      for (int from = 0; from < size(); ++from) {
        if (from == rank()) continue;
        copy(at(out, bytes * from + done), at(steps_.of(from), room() * rank()), now);
      }
    }
    copy(at(out, bytes * rank()), at(in, bytes * rank()), bytes);
  }

  void do_permute(const void* in, void* out, int64_t count, DType dtype,
                  std::span<const std::pair<int, int>> pairs, void*) override {
    const CollectiveCall call = current();
    const size_t bytes = storage_bytes(dtype, count);
    const auto sends = std::ranges::find(pairs, rank(), &std::pair<int, int>::first);
    const auto gets = std::ranges::find(pairs, rank(), &std::pair<int, int>::second);
    for (size_t done = 0; done < bytes; done += kStep) {
      const size_t now = piece(done, kStep, bytes);
      if (sends != pairs.end()) copy(steps_.mine(), at(in, done), now);
      steps_.meet(call);
      if (gets != pairs.end()) copy(at(out, done), steps_.of(gets->first), now);
    }
    if (gets == pairs.end()) std::memset(out, 0, bytes);
  }

  void do_send(const void* in, int64_t count, DType dtype, int to, void*) override {
    steps_.send(current(), in, storage_bytes(dtype, count), to);
  }

  void do_receive(void* out, int64_t count, DType dtype, int from, void*) override {
    steps_.receive(current(), out, storage_bytes(dtype, count), from);
  }

  void do_barrier(void*) override { steps_.meet(current()); }

  std::unique_ptr<Communicator> do_split(std::span<const std::vector<int>> groups,
                                         const std::vector<int>* group) override;

 private:
  // Of a rank's memory of a step, for each of the others.
  size_t room() const { return kStep / size() / kCacheLine * kCacheLine; }

  template <typename PartFor>
  void bring_rooms(const CollectiveCall& call, const PartFor& part_for) {
    for (int to = 0; to < size(); ++to) {
      const auto [memory, bytes] = part_for(to);
      if (to != rank()) copy(steps_.mine() + room() * to, memory, bytes);
    }
    steps_.meet(call);
  }

  // Of what the ranks brought at this byte of their memory; `own`: what this one did.
  void reduce(const void* own, size_t byte, void* out, int64_t count, DType dtype,
              Reduction reduction) {
    if (count == 0) return;
    for (int other = 0; other < size(); ++other) inputs_[other] = steps_.of(other) + byte;
    inputs_[rank()] = own;
    reduce_elements(dtype, reduction, inputs_, out, count);
  }
  void reduce_in_parts(const CollectiveCall& call, const void* in, void* out, size_t bytes,
                       DType dtype, Reduction reduction);

  SharedSteps steps_;
  const KeyValues store_;
  const SegmentMembers members_;
  std::vector<const void*> inputs_;
};

// Each rank reduces its part of what fits into a step, and gets the others' in the next one.
void SharedMemory::reduce_in_parts(const CollectiveCall& call, const void* in, void* out,
                                   size_t bytes, DType dtype, Reduction reduction) {
  const size_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  const size_t part = (lines + size() - 1) / size() * kCacheLine;
  const size_t begin = part * rank(), own = piece(begin, part, bytes);
  for (int other = 0; other < size(); ++other) {
    const size_t theirs = part * other;
    if (other != rank()) copy(steps_.mine() + theirs, at(in, theirs), piece(theirs, part, bytes));
  }
  steps_.meet(call);
  reduce(at(in, begin), begin, at(out, begin), static_cast<int64_t>(own / storage_bytes(dtype, 1)),
         dtype, reduction);
  copy(steps_.mine(), at(out, begin), own);
  steps_.meet(call);
  for (int other = 0; other < size(); ++other) {
    const size_t theirs = part * other;
    if (other != rank()) copy(at(out, theirs), steps_.of(other), piece(theirs, part, bytes));
  }
}

std::unique_ptr<Communicator> SharedMemory::do_split(std::span<const std::vector<int>> groups,
                                                     const std::vector<int>* group) {
  const CollectiveCall call = current();
  steps_.meet(call);
  if (group == nullptr) return nullptr;
  SegmentMembers some;
  for (const int member : *group) some.store_ranks.push_back(members_.store_ranks[member]);
  some.rank = static_cast<int>(std::ranges::find(*group, rank()) - group->begin());
  // The text of the call has all groups and a number that no other one has.
  some.key = fmt::format("{}/{}-{}", members_.key, group - groups.data(),
                         hex(sha256(call.text())).substr(0, 16));
  SharedSegment segment;
  const Support connected =
      connect_segment(store_, some, SharedSteps::segment_bytes(static_cast<int>(group->size())),
                      settings().deadline, segment);
  if (!connected) throw CollectiveError(fmt::format("{}: {}", call.text(), connected.reason));
  return std::make_unique<SharedMemory>(std::move(segment), store_, std::move(some), settings());
}

}  // namespace

SharedMemoryRanks make_shared_memory(int rank, int size, KeyValues store,
                                     const Communicator::Settings& settings,
                                     const std::string& name) {
  if (size < 1) throw UserError(fmt::format("{} ranks were asked for, one is the least", size));
  if (rank < 0 || rank >= size) {
    throw UserError(fmt::format("rank {} is none of {} ranks, 0 to {}", rank, size, size - 1));
  }
  SegmentMembers all{std::vector<int>(size), rank, name};
  std::iota(all.store_ranks.begin(), all.store_ranks.end(), 0);
  SharedSegment segment;
  const Support connected =
      connect_segment(store, all, SharedSteps::segment_bytes(size), settings.deadline, segment);
  if (!connected) return {nullptr, connected.reason};
  return {std::make_unique<SharedMemory>(std::move(segment), std::move(store), std::move(all),
                                         settings),
          ""};
}

}  // namespace tenon::distributed
