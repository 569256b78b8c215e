#include "distributed/rendezvous/store.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "distributed/rendezvous/fingerprint.h"
#include "distributed/rendezvous/store_member.h"
#include "distributed/rendezvous/user_secret.h"

namespace tenon::distributed {

Store::Store(std::unique_ptr<StoreMember> member) : member_(std::move(member)) {}

std::unique_ptr<Store> Store::join(const LaunchPlace& place, Settings settings) {
  if (place.size < 1 || place.rank < 0 || place.rank >= place.size) {
    throw InternalError(fmt::format("rank {} of {}", place.rank, place.size));
  }
  if (place.size > 1 && (place.host.empty() || place.ports.empty())) {
    throw InternalError("ranks without an address to meet at");
  }
  auto member =
      std::make_unique<StoreMember>(with_user_secret(place, secret_folders()), std::move(settings));
  member->wait_for_all();
  return std::unique_ptr<Store>(new Store(std::move(member)));
}

Store::~Store() {
  // Its threads are the parent's, its locks may be held for ever.
  if (member_->is_forked_copy()) (void)member_.release();
}

int Store::rank() const { return member_->rank; }
int Store::size() const { return member_->size; }
std::string Store::process(int rank) const { return member_->process(rank); }

void Store::set(std::string_view key, std::string_view value) {
  member_->post(fmt::format("value of {}", key), value);
}

std::string Store::get(int rank, std::string_view key) {
  return get(rank, key, member_->settings.deadline);
}

std::string Store::get(int rank, std::string_view key, Milliseconds deadline) {
  if (rank < 0 || rank >= size()) throw InternalError(fmt::format("rank {} of {}", rank, size()));
  return member_
      ->wait_for({.ranks = {rank},
                  .key = fmt::format("value of {}", key),
                  .what = fmt::format("set '{}'", key),
                  .deadline = deadline,
                  .by_all = false})
      .front();
}

std::vector<std::string> Store::all_gather(std::string_view name, std::string_view value) {
  return all_gather(name, value, member_->settings.deadline);
}

std::vector<std::string> Store::all_gather(std::string_view name, std::string_view value,
                                           Milliseconds deadline) {
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  const std::string key = member_->next_round(name);
  member_->post(key, value);
  return member_->wait_for({.ranks = std::move(all),
                            .key = key,
                            .what = fmt::format("arrive at '{}'", name),
                            .deadline = deadline,
                            .by_all = true});
}

void Store::announce(const std::string& occasion, const Fingerprint& mine) {
  member_->announce(occasion, encode(mine));
}

std::optional<std::string> Store::verdict(Milliseconds wait) const {
  return member_->verdict(wait);
}

void Store::report_failure(const std::string& reason) { member_->report(reason); }
std::optional<std::string> Store::failure() const { return member_->failure(); }

}  // namespace tenon::distributed
