// Memory that all ranks register or none: what stands against it on one rank keeps all from it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "distributed/communicator.h"
#include "distributed/rendezvous/fingerprint.h"

namespace tenon::distributed {

class RegisteredMemory {
 public:
  // As Job::require_equal.
  using RequireEqual = std::function<void(const std::string& occasion, const Fingerprint& mine)>;
  // `patience`: of the trial, less than require_equal has.
  RegisteredMemory(std::shared_ptr<Communicator> ranks, RequireEqual require_equal,
                   std::chrono::milliseconds patience)
      : ranks_(std::move(ranks)), require_equal_(std::move(require_equal)), patience_(patience) {}

  // As agree_on_memory and make_memory of a Job.
  bool agree(const std::string& occasion, const std::string& layout);
  std::shared_ptr<void> make(const std::string& occasion, size_t bytes);
  const std::string& why_none() const { return why_none_; }

 private:
  // What the engine refuses would end its communicator: it is tried on another one first, once.
  bool is_possible();
  std::string try_out();
  // Whether no rank has a reason against it and all bring the same.
  bool all_agree(const std::string& occasion, const std::string& mine, const std::string& reason);

  const std::shared_ptr<Communicator> ranks_;
  const RequireEqual require_equal_;
  const std::chrono::milliseconds patience_;
  std::optional<bool> is_possible_;
  std::string why_none_;
};

}  // namespace tenon::distributed
