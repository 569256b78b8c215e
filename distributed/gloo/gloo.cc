#include "distributed/gloo/gloo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "distributed/element_ops.h"
#include "distributed/gloo/address.h"
#include "distributed/gloo/load.h"

namespace tenon::distributed {
namespace {

// What an all_reduce may send more than it must, for having one exchange instead of two.
constexpr size_t kMaxExtraBytes = 64 * 1024;

// Elements of some memory.
struct Part {
  int64_t begin, count;
};

std::vector<Part> parts_of(std::span<const int64_t> counts) {
  std::vector<Part> parts;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    parts.push_back({begin, count});
    begin += count;
  }
  return parts;
}

std::vector<int64_t> even_counts(int64_t count, int size) {
  std::vector<int64_t> counts(size);
  for (int rank = 0; rank < size; ++rank) {
    counts[rank] = count / size + (rank < count % size ? 1 : 0);
  }
  return counts;
}

// Gloo takes what is sent from as memory that could be written, which it is not.
tenon_gloo_transfer transfer(int peer, const void* memory, DType dtype, Part part) {
  auto* bytes = static_cast<char*>(const_cast<void*>(memory)) + storage_bytes(dtype, part.begin);
  return {peer, bytes, storage_bytes(dtype, part.count)};
}

// `to` and `from` may be the same memory.
void copy(const tenon_gloo_transfer& to, const tenon_gloo_transfer& from) {
  if (to.bytes > 0) std::memmove(to.memory, from.memory, to.bytes);
}

class Gloo final : public Communicator {
 public:
  Gloo(const tenon_gloo_functions& functions, GlooMesh::Device device, KeyValues store,
       GlooMesh::Members members, Settings settings, std::string note)
      : Communicator(members.rank, static_cast<int>(members.store_ranks.size()), settings),
        mesh_(functions, std::move(device), std::move(store), std::move(members),
              settings.deadline),
        note_(std::move(note)) {}

  std::string engine() const override {
    return note_.empty() ? "gloo" : fmt::format("gloo ({})", note_);
  }

  void abort(const std::string& reason) override {
    fail(fmt::format("rank {} was aborted, it {}: {}", rank(), progress().text(), reason));
    mesh_.abort(failure());
  }

 protected:
  void do_all_reduce(const void* in, void* out, int64_t count, DType dtype, Reduction reduction,
                     void*) override {
    const size_t extra = storage_bytes(dtype, count) * (size() - 2) * (size() - 1) / size();
    if (size() <= 2 || extra <= kMaxExtraBytes) {
      const std::vector<Part> whole(size(), Part{0, count});
      reduce(in, whole, out, dtype, reduction);
      return;
    }
    const std::vector<int64_t> counts = even_counts(count, size());
    const std::vector<Part> parts = parts_of(counts);
    char* mine = static_cast<char*>(out) + storage_bytes(dtype, parts[rank()].begin);
    reduce(in, parts, mine, dtype, reduction);
    gather(mine, out, parts, dtype);
  }

  void do_all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                     void*) override {
    gather(in, out, parts_of(counts), dtype);
  }

  void do_reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                         Reduction reduction, void*) override {
    reduce(in, parts_of(counts), out, dtype, reduction);
  }

  void do_broadcast(const void* in, void* out, int64_t count, DType dtype, int root,
                    void*) override {
    const Part whole{0, count};
    if (rank() != root) {
      exchange({transfer(root, out, dtype, whole)}, {});
      return;
    }
    exchange({}, to_peers([&](int peer) { return transfer(peer, in, dtype, whole); }));
    copy(transfer(root, out, dtype, whole), transfer(root, in, dtype, whole));
  }

  void do_all_to_all(const void* in, void* out, int64_t count, DType dtype, void*) override {
    const std::vector<Part> parts = parts_of(std::vector<int64_t>(size(), count));
    const auto of = [&](const void* memory) {
      return [&, memory](int peer) { return transfer(peer, memory, dtype, parts[peer]); };
    };
    exchange(to_peers(of(out)), to_peers(of(in)));
    copy(of(out)(rank()), of(in)(rank()));
  }

  void do_permute(const void* in, void* out, int64_t count, DType dtype,
                  std::span<const std::pair<int, int>> pairs, void*) override {
    GlooMesh::Transfers receives, sends;
    const Part whole{0, count};
    bool is_target = false;
    for (const auto& [source, target] : pairs) {
      is_target = is_target || target == rank();
      if (source == target) {
        if (source == rank()) copy(transfer(0, out, dtype, whole), transfer(0, in, dtype, whole));
      } else if (source == rank()) {
        sends.push_back(transfer(target, in, dtype, whole));
      } else if (target == rank()) {
        receives.push_back(transfer(source, out, dtype, whole));
      }
    }
    if (!is_target) std::memset(out, 0, storage_bytes(dtype, count));
    exchange(receives, sends);
  }

  void do_send(const void* in, int64_t count, DType dtype, int to, void*) override {
    exchange({}, {transfer(to, in, dtype, {0, count})});
  }

  void do_receive(void* out, int64_t count, DType dtype, int from, void*) override {
    exchange({transfer(from, out, dtype, {0, count})}, {});
  }

  void do_barrier(void*) override {
    const auto nothing = [](int peer) { return tenon_gloo_transfer{peer, nullptr, 0}; };
    exchange(to_peers(nothing), to_peers(nothing));
  }

  std::unique_ptr<Communicator> do_split(std::span<const std::vector<int>> groups,
                                         const std::vector<int>* group) override;

 private:
  template <typename Transfer>
  GlooMesh::Transfers to_peers(const Transfer& transfer) const {
    GlooMesh::Transfers transfers;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) transfers.push_back(transfer(peer));
    }
    return transfers;
  }

  // Messages of the same call and step meet. Nothing is sent where there is nothing to send.
  void exchange(GlooMesh::Transfers receives, GlooMesh::Transfers sends,
                std::string_view step = "");
  // Rank r gets the reduction of all parts r in `out`.
  void reduce(const void* in, const std::vector<Part>& parts, void* out, DType dtype,
              Reduction reduction);
  void gather(const void* in, void* out, const std::vector<Part>& parts, DType dtype);

  GlooMesh mesh_;
  const std::string note_;
  std::vector<char> received_;  // what is to be reduced; kept from call to call
};

void Gloo::exchange(GlooMesh::Transfers receives, GlooMesh::Transfers sends,
                    std::string_view step) {
  const CollectiveCall call = current();
  CollectiveCall met = call;
  if (call.op == "send" || call.op == "receive") {  // they are told apart by who sends
    met.op = "message";
    met.detail = "";
  }
  const auto is_empty = [](const tenon_gloo_transfer& one) { return one.bytes == 0; };
  if (call.elements > 0) {
    std::erase_if(receives, is_empty);
    std::erase_if(sends, is_empty);
  }
  try {
    mesh_.exchange(call.text(), fmt::format("{} {}", met.text(), step), receives, sends);
  } catch (const CollectiveError&) {
    if (const std::string why = failure(); !why.empty()) throw CollectiveError(why);  // aborted
    throw;
  }
}

void Gloo::reduce(const void* in, const std::vector<Part>& parts, void* out, DType dtype,
                  Reduction reduction) {
  const Part mine = parts[rank()];
  const size_t bytes = storage_bytes(dtype, mine.count);
  received_.resize(std::max(received_.size(), bytes * (size() - 1)));
  char* free = received_.data();
  std::vector<const void*> inputs(size());
  inputs[rank()] = transfer(rank(), in, dtype, mine).memory;
  const GlooMesh::Transfers receives = to_peers([&](int peer) {
    inputs[peer] = free;
    return tenon_gloo_transfer{peer, std::exchange(free, free + bytes), bytes};
  });
  exchange(receives, to_peers([&](int peer) { return transfer(peer, in, dtype, parts[peer]); }));
  reduce_elements(dtype, reduction, inputs, out, mine.count);
}

void Gloo::gather(const void* in, void* out, const std::vector<Part>& parts, DType dtype) {
  const auto part = [&](int peer) { return transfer(peer, out, dtype, parts[peer]); };
  const auto mine = [&](int peer) { return transfer(peer, in, dtype, {0, parts[rank()].count}); };
  exchange(to_peers(part), to_peers(mine), "gather");
  copy(part(rank()), mine(rank()));
}

std::unique_ptr<Communicator> Gloo::do_split(std::span<const std::vector<int>> groups,
                                             const std::vector<int>* group) {
  if (group == nullptr) return nullptr;
  const GlooMesh::Members& all = mesh_.members();
  GlooMesh::Members some;
  for (const int member : *group) some.store_ranks.push_back(all.store_ranks[member]);
  some.rank = static_cast<int>(std::ranges::find(*group, rank()) - group->begin());
  // The text of the call has all groups and a number that no other one has.
  some.key = fmt::format("{}/{}-{}", all.key, group - groups.data(),
                         hex(sha256(current().text())).substr(0, 16));
  return std::make_unique<Gloo>(mesh_.functions(), mesh_.device(), mesh_.store(), std::move(some),
                                settings(), note_);
}

}  // namespace

Support gloo_support() {
  const GlooLibrary& library = gloo_library();
  return library.functions != nullptr ? Support::yes() : Support::no(library.why);
}

std::unique_ptr<Communicator> make_gloo(int rank, int size, KeyValues store,
                                        const GlooSettings& settings, const std::string& name) {
  if (const Support there = gloo_support(); !there) throw UserError(there.reason);
  if (size < 1) throw UserError(fmt::format("{} ranks were asked for, one is the least", size));
  const tenon_gloo_functions& functions = *gloo_library().functions;
  GlooMesh::Members all{std::vector<int>(size), rank, name};
  std::iota(all.store_ranks.begin(), all.store_ranks.end(), 0);
  GlooMesh::Device device = GlooMesh::open_device(functions, own_address(settings.address));
  return std::make_unique<Gloo>(functions, std::move(device), std::move(store), std::move(all),
                                settings.common, settings.note);
}

}  // namespace tenon::distributed
