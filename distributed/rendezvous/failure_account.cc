#include "distributed/rendezvous/failure_account.h"

#include <fmt/format.h>

#include <utility>

namespace tenon::distributed {
namespace {

constexpr std::chrono::milliseconds kAnswerTime{300};

}  // namespace

void FailureAccount::heard(int rank, const std::string& how_far, bool asked) {
  Rank& known = ranks_[static_cast<size_t>(rank)];
  if (!how_far.empty()) known.how_far = how_far;
  known.answered = known.answered || asked;
}

void FailureAccount::add(StoreMessage failure, bool is_loss, Clock::time_point now) {
  if (!is_open()) due_ = now + kAnswerTime;
  const size_t place = is_loss ? losses_++ : failures_.size();
  failures_.insert(failures_.begin() + static_cast<ptrdiff_t>(place), std::move(failure));
}

std::vector<StoreMessage> FailureAccount::take() {
  std::vector<StoreMessage> failures = std::exchange(failures_, {});
  losses_ = 0;
  if (!failures.empty()) failures.front().value += how_far_all_came();
  return failures;
}

std::string FailureAccount::how_far_all_came() const {
  std::string text;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& [how_far, answered] = ranks_[rank];
    if (how_far.empty()) continue;
    text += fmt::format("{}rank {}{} {}", text.empty() ? "" : "; ", rank,
                        answered ? "" : ", when it was last heard of,", how_far);
  }
  return text.empty() ? "" : fmt::format(" ({})", text);
}

}  // namespace tenon::distributed
