#include "distributed/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "distributed/call_checks.h"

namespace tenon::distributed {
namespace {

std::string joined(std::string_view first, std::string_view second) {
  return fmt::format("{}{}{}", first, second.empty() ? "" : ", ", second);
}

}  // namespace

std::string CollectiveCall::text() const {
  std::string text = fmt::format("{} #{}", op, number);
  if (dtype != DType::kUndefined) text += fmt::format(" of {}[{}]", name(dtype), elements);
  if (!detail.empty()) text += fmt::format(" ({})", detail);
  return text;
}

std::string Communicator::Progress::text() const {
  const std::string finished =
      last_finished.number > 0 ? "last finished " + last_finished.text() : "";
  if (first_unfinished.number > 0) return joined("is in " + first_unfinished.text(), finished);
  return finished.empty() ? "has called nothing" : finished;
}

struct Communicator::Record {
  explicit Record(int size) : sent(size), received(size) {}

  std::mutex mutex;
  int64_t collectives = 0;
  std::vector<int64_t> sent, received;  // messages, by peer
  Progress progress;
  bool under_way = false;
  std::string failure;
};

Communicator::Communicator(int rank, int size, Settings settings)
    : rank_(rank), size_(size), settings_(settings), record_(std::make_unique<Record>(size)) {
  if (size < 1) throw UserError(fmt::format("{} ranks were asked for, one is the least", size));
  if (rank < 0 || rank >= size) {
    throw UserError(fmt::format("rank {} is none of {} ranks, 0 to {}", rank, size, size - 1));
  }
  if (settings.deadline.count() <= 0) {
    throw UserError(fmt::format("the deadline of collectives is {} ms, it must be positive",
                                settings.deadline.count()));
  }
}

Communicator::~Communicator() = default;

CollectiveCall Communicator::current() const {
  const std::lock_guard lock(record_->mutex);
  return record_->progress.first_unfinished;
}

void Communicator::fail(const std::string& why) {
  const std::lock_guard lock(record_->mutex);
  if (record_->failure.empty()) record_->failure = why.empty() ? "failed" : why;
}

std::string Communicator::failure() const {
  const std::lock_guard lock(record_->mutex);
  return record_->failure;
}

Communicator::Progress Communicator::progress() const {
  const std::lock_guard lock(record_->mutex);
  return record_->progress;
}

void Communicator::call(CollectiveCall call, int64_t& counter, bool empty,
                        const std::function<void()>& work) {
  {
    const std::lock_guard lock(record_->mutex);
    if (!record_->failure.empty()) throw CollectiveError(record_->failure);
    if (record_->under_way) {
      throw UserError(fmt::format("{} on rank {}: another thread of it is in {}; one at a time",
                                  call.op, rank_, record_->progress.first_unfinished.text()));
    }
    call.number = ++counter;
    record_->progress.first_unfinished = call;
    record_->under_way = true;
  }
  const auto end = [&](bool finished) {
    const std::lock_guard lock(record_->mutex);
    record_->under_way = false;
    if (!finished) return;
    record_->progress.first_unfinished = {};
    record_->progress.last_finished = call;
  };
  try {
    if (!empty) work();
    end(true);
  } catch (const std::exception& error) {
    // Peers have gone on, or wait for what will not come: there is no way back into step.
    fail(error.what());
    end(false);
    // An abort may have come first: the reason that later calls repeat is the one that is thrown.
    if (const std::string first = failure(); first != error.what()) throw CollectiveError(first);
    throw;
  }
}

void Communicator::refuse() const {
  throw InternalError(fmt::format("the engine {} has no {}", engine(), current().op));
}

void Communicator::do_all_reduce(const void*, void*, int64_t, DType, Reduction, void*) { refuse(); }
void Communicator::do_all_gather(const void*, void*, std::span<const int64_t>, DType, void*) {
  refuse();
}
void Communicator::do_reduce_scatter(const void*, void*, std::span<const int64_t>, DType, Reduction,
                                     void*) {
  refuse();
}
void Communicator::do_broadcast(const void*, void*, int64_t, DType, int, void*) { refuse(); }
void Communicator::do_all_to_all(const void*, void*, int64_t, DType, void*) { refuse(); }
void Communicator::do_permute(const void*, void*, int64_t, DType,
                              std::span<const std::pair<int, int>>, void*) {
  refuse();
}
void Communicator::do_send(const void*, int64_t, DType, int, void*) { refuse(); }
void Communicator::do_receive(void*, int64_t, DType, int, void*) { refuse(); }
void Communicator::do_barrier(void*) { refuse(); }
std::unique_ptr<Communicator> Communicator::do_split(std::span<const std::vector<int>>,
                                                     const std::vector<int>*) {
  refuse();
}
Support Communicator::do_register_memory(EngineMemory&) { refuse(); }

void Communicator::all_reduce(const void* in, void* out, int64_t count, DType dtype,
                              Reduction reduction, void* stream) {
  const CallChecks checks("all_reduce", rank_, size_);
  checks.count(count, dtype);
  checks.supported(can_reduce(dtype, reduction));
  checks.supported(supports(dtype, reduction));
  checks.memory("in", in, count);
  checks.memory("out", out, count);
  checks.apart({in, count, out, count}, dtype, 0);
  call({"all_reduce", 0, count, dtype, std::string(name(reduction))}, record_->collectives,
       count == 0, [&] { do_all_reduce(in, out, count, dtype, reduction, stream); });
}

void Communicator::all_gather(const void* in, void* out, std::span<const int64_t> counts,
                              DType dtype, void* stream) {
  const CallChecks checks("all_gather", rank_, size_);
  checks.supported(supports_call("all_gather"));
  const int64_t sum = checks.counts(counts, dtype);
  checks.memory("in", in, counts[rank_]);
  checks.memory("out", out, sum);
  const int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank_, int64_t{0});
  checks.apart({in, counts[rank_], out, sum}, dtype, begin);
  call({"all_gather", 0, sum, dtype, counts_text(counts)}, record_->collectives, sum == 0,
       [&] { do_all_gather(in, out, counts, dtype, stream); });
}

void Communicator::reduce_scatter(const void* in, void* out, std::span<const int64_t> counts,
                                  DType dtype, Reduction reduction, void* stream) {
  const CallChecks checks("reduce_scatter", rank_, size_);
  checks.supported(supports_call("reduce_scatter"));
  const int64_t sum = checks.counts(counts, dtype);
  checks.supported(can_reduce(dtype, reduction));
  checks.supported(supports(dtype, reduction));
  checks.memory("in", in, sum);
  checks.memory("out", out, counts[rank_]);
  const int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank_, int64_t{0});
  checks.apart({in, sum, out, counts[rank_]}, dtype, begin);
  call({"reduce_scatter", 0, sum, dtype, joined(name(reduction), counts_text(counts))},
       record_->collectives, sum == 0,
       [&] { do_reduce_scatter(in, out, counts, dtype, reduction, stream); });
}

void Communicator::broadcast(const void* in, void* out, int64_t count, DType dtype, int root,
                             void* stream) {
  const CallChecks checks("broadcast", rank_, size_);
  checks.count(count, dtype);
  checks.in_range("root", root);
  checks.memory("out", out, count);
  if (rank_ == root) {
    checks.memory("in", in, count);
    checks.apart({in, count, out, count}, dtype, 0);
  }
  call({"broadcast", 0, count, dtype, fmt::format("root {}", root)}, record_->collectives,
       count == 0, [&] { do_broadcast(in, out, count, dtype, root, stream); });
}

void Communicator::all_to_all(const void* in, void* out, int64_t count, DType dtype, void* stream) {
  const CallChecks checks("all_to_all", rank_, size_);
  checks.supported(supports_call("all_to_all"));
  checks.count(count, dtype);
  checks.memory("in", in, count);
  checks.memory("out", out, count);
  checks.apart({in, count * size_, out, count * size_}, dtype);
  call({"all_to_all", 0, count * size_, dtype, ""}, record_->collectives, count == 0,
       [&] { do_all_to_all(in, out, count, dtype, stream); });
}

void Communicator::permute(const void* in, void* out, int64_t count, DType dtype,
                           std::span<const std::pair<int, int>> pairs, void* stream) {
  const CallChecks checks("permute", rank_, size_);
  checks.supported(supports_call("permute"));
  checks.count(count, dtype);
  checks.pairs(pairs);
  checks.memory("out", out, count);
  if (std::ranges::any_of(pairs, [&](const auto& pair) { return pair.first == rank_; })) {
    checks.memory("in", in, count);
    checks.apart({in, count, out, count}, dtype);
  }
  call({"permute", 0, count, dtype, pairs_text(pairs)}, record_->collectives, count == 0,
       [&] { do_permute(in, out, count, dtype, pairs, stream); });
}

void Communicator::send(const void* in, int64_t count, DType dtype, int to, void* stream) {
  const CallChecks checks("send", rank_, size_);
  checks.supported(supports_call("send"));
  checks.count(count, dtype);
  checks.another("peer", to);
  checks.memory("in", in, count);
  call({"send", 0, count, dtype, fmt::format("to {}", to)}, record_->sent[to], count == 0,
       [&] { do_send(in, count, dtype, to, stream); });
}

void Communicator::receive(void* out, int64_t count, DType dtype, int from, void* stream) {
  const CallChecks checks("receive", rank_, size_);
  checks.supported(supports_call("receive"));
  checks.count(count, dtype);
  checks.another("peer", from);
  checks.memory("out", out, count);
  call({"receive", 0, count, dtype, fmt::format("from {}", from)}, record_->received[from],
       count == 0, [&] { do_receive(out, count, dtype, from, stream); });
}

void Communicator::barrier(void* stream) {
  call({"barrier", 0, 0, DType::kUndefined, ""}, record_->collectives, false,
       [&] { do_barrier(stream); });
}

std::unique_ptr<Communicator> Communicator::split(std::span<const std::vector<int>> groups) {
  const CallChecks checks("split", rank_, size_);
  checks.groups(groups);
  checks.supported(supports_groups(groups));
  const auto mine = std::ranges::find_if(groups, [&](const std::vector<int>& group) {
    return std::ranges::find(group, rank_) != group.end();
  });
  std::unique_ptr<Communicator> made;
  call({"split", 0, 0, DType::kUndefined, groups_text(groups)}, record_->collectives, false,
       [&] { made = do_split(groups, mine == groups.end() ? nullptr : &*mine); });
  return made;
}

Support Communicator::register_memory(EngineMemory& memory) {
  Support taken;
  call({"register_memory", 0, 0, DType::kUndefined, ""}, record_->collectives, false,
       [&] { taken = do_register_memory(memory); });
  return taken;
}

}  // namespace tenon::distributed
