#include "distributed/gloo/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "distributed/messages.h"

namespace tenon::distributed {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How long a failing rank waits for what others have to say about it.
constexpr milliseconds kForLastWords{500};
constexpr size_t kMaxAddress = 256;

uint64_t slot_of(const std::string& meets) {
  const Digest digest = sha256(meets);
  uint64_t slot;
  std::memcpy(&slot, digest.data(), sizeof slot);
  return slot;
}

milliseconds left_until(Clock::time_point end) {
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(end - Clock::now()));
}

}  // namespace

GlooMesh::Device GlooMesh::open_device(const tenon_gloo_functions& functions,
                                       const std::string& address) {
  tenon_gloo_report report{};
  tenon_gloo_device* device = functions.open_device(address.c_str(), &report);
  if (device == nullptr) {
    throw UserError(fmt::format("Gloo cannot use the address {}: {}", address, report.text));
  }
  return {device, functions.close_device};
}

GlooMesh::GlooMesh(const tenon_gloo_functions& functions, Device device, KeyValues store,
                   Members members, milliseconds deadline)
    : functions_(functions),
      device_(std::move(device)),
      store_(std::move(store)),
      members_(std::move(members)),
      deadline_(deadline),
      mesh_(nullptr, Destroy{&functions}) {
  tenon_gloo_report report{};
  mesh_.reset(functions_.make_mesh(device_.get(), members_.rank,
                                   static_cast<int>(members_.store_ranks.size()), deadline_.count(),
                                   &report));
  if (mesh_ == nullptr) throw CollectiveError(fmt::format("connecting ranks: {}", report.text));
  connect();
}

GlooMesh::~GlooMesh() = default;

// Everybody is waited for in the store first: who is missing there is named, and who is in it
// connects at once.
void GlooMesh::connect() {
  const auto end = Clock::now() + deadline_;
  const int size = static_cast<int>(members_.store_ranks.size());
  const auto each_peer = [&](const auto& what) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != members_.rank) what(peer);
    }
  };
  const auto address_key = [&](int to) { return key("address for ") + std::to_string(to); };
  each_peer([&](int peer) {
    std::array<char, kMaxAddress> address;
    const size_t bytes = functions_.address_for(mesh_.get(), peer, address.data(), address.size());
    store_.set(address_key(peer), std::string(address.data(), std::min(bytes, address.size())));
  });
  std::vector<std::string> addresses(size);
  each_peer([&](int peer) {
    try {
      addresses[peer] =
          store_.get(members_.store_ranks[peer], address_key(members_.rank), left_until(end));
    } catch (const std::exception& error) {
      throw CollectiveError(fmt::format("connecting {} ranks: rank {} did not arrive within {}: {}",
                                        size, peer, time_text(deadline_), error.what()));
    }
  });
  each_peer([&](int peer) {
    std::vector<uint8_t> failed(size);
    tenon_gloo_report report{.outcome = 0, .text = {}, .failed = failed.data()};
    const int outcome = functions_.connect(mesh_.get(), peer, addresses[peer].data(),
                                           addresses[peer].size(), &report);
    if (outcome != TENON_GLOO_DONE) fail(fmt::format("connecting {} ranks", size), report);
  });
  wait_for_all(left_until(end));
}

// A rank that is done and ends must not break connections that others are still making.
void GlooMesh::wait_for_all(milliseconds deadline) {
  const int size = static_cast<int>(members_.store_ranks.size());
  Transfers nothing;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != members_.rank) nothing.push_back({peer, nullptr, 0});
  }
  if (nothing.empty()) return;
  exchange(fmt::format("connecting {} ranks", size), key("connected"), nothing, nothing, deadline);
}

void GlooMesh::exchange(const std::string& call, const std::string& meets,
                        const Transfers& receives, const Transfers& sends) {
  exchange(call, meets, receives, sends, deadline_);
}

void GlooMesh::exchange(const std::string& call, const std::string& meets,
                        const Transfers& receives, const Transfers& sends, milliseconds deadline) {
  std::vector<uint8_t> failed(members_.store_ranks.size());
  tenon_gloo_report report{.outcome = 0, .text = {}, .failed = failed.data()};
  const int outcome =
      functions_.exchange(mesh_.get(), slot_of(meets), receives.data(), receives.size(),
                          sends.data(), sends.size(), deadline.count(), &report);
  if (outcome != TENON_GLOO_DONE) fail(call, report);
}

void GlooMesh::abort(const std::string& reason) {
  tell(reason);
  functions_.abort(mesh_.get());
}

void GlooMesh::fail(const std::string& call, const tenon_gloo_report& report) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < members_.store_ranks.size(); ++rank) {
    if (report.failed[rank] != 0) ranks.push_back(static_cast<int>(rank));
  }
  std::string why;
  switch (report.outcome) {
    case TENON_GLOO_LATE:
      why = fmt::format("{}: {} did not arrive within {}", call, ranks_text(ranks),
                        time_text(deadline_));
      break;
    case TENON_GLOO_BROKEN:
      why = fmt::format("{}: {} is gone: {}", call, ranks_text(ranks), report.text);
      break;
    case TENON_GLOO_ABORTED:
      throw CollectiveError(fmt::format("{}: aborted", call));
    default:
      why = fmt::format("{}: {}", call, report.text);
  }
  tell(why);
  throw CollectiveError(why + told_by(ranks));
}

// Others ask for it when this rank's connections have ended.
void GlooMesh::tell(const std::string& why) noexcept {
  try {
    store_.set(key("failure"), why);
  } catch (...) {  // the store may be gone with the rank that keeps it
  }
}

// What they said when they failed, as text behind a message. One that died said nothing. One that
// did has a reason, which may lie with a third: then those are asked too, but not waited for.
std::string GlooMesh::told_by(std::span<const int> ranks) noexcept {
  const auto end = Clock::now() + kForLastWords;
  std::vector<std::string> told;
  const auto ask = [&](int rank, milliseconds wait) {
    try {
      const std::string why = store_.get(members_.store_ranks[rank], key("failure"), wait);
      told.push_back(fmt::format("rank {}: {}", rank, why));
    } catch (...) {
    }
  };
  for (const int rank : ranks) ask(rank, left_until(end));
  const int size = static_cast<int>(told.empty() ? 0 : members_.store_ranks.size());
  for (int rank = 0; rank < size; ++rank) {
    const bool was_asked = rank == members_.rank || std::ranges::find(ranks, rank) != ranks.end();
    if (!was_asked) ask(rank, milliseconds(1));
  }
  return told.empty() ? "" : fmt::format(" ({})", fmt::join(told, "; "));
}

}  // namespace tenon::distributed
