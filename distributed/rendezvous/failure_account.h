// What all ranks are told when their group fails: what happened, and how far each of them came.
#pragma once

#include <string>
#include <vector>

#include "distributed/rendezvous/socket.h"
#include "distributed/rendezvous/store_message.h"

namespace tenon::distributed {

// Between the first failure and the word to all there is a short time in which ranks that live
// answer, and in which a rank that died is noticed by itself and not only by those who miss it.
class FailureAccount {
 public:
  explicit FailureAccount(int ranks) : ranks_(static_cast<size_t>(ranks)) {}

  // A beat's word; `asked`: it is the answer. Empty: the rank says nothing of itself.
  void heard(int rank, const std::string& how_far, bool asked);
  // `is_loss`: noticed by the server. Opens the account.
  void add(StoreMessage failure, bool is_loss, Clock::time_point now);

  bool is_open() const { return !failures_.empty(); }
  bool has_answer_of(int rank) const { return ranks_[static_cast<size_t>(rank)].answered; }
  Clock::time_point due() const { return due_; }

  // Closes it: the failures in the order in which ranks are to hear of them, losses first. The
  // first has what all ranks said of themselves.
  std::vector<StoreMessage> take();

 private:
  struct Rank {
    std::string how_far;
    bool answered = false;
  };
  std::string how_far_all_came() const;

  std::vector<Rank> ranks_;
  std::vector<StoreMessage> failures_;
  size_t losses_ = 0;  // the first of failures_
  Clock::time_point due_{};
};

}  // namespace tenon::distributed
