#include "distributed/registered_memory.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "base/error.h"
#include "distributed/bounded_call.h"
#include "distributed/messages.h"

namespace tenon::distributed {
namespace {

// Empty, or what went wrong; null in `memory` where the engine has none of its own.
std::string allocate(Communicator& ranks, size_t bytes, std::unique_ptr<EngineMemory>& memory) {
  try {
    memory = ranks.allocate(bytes);
    return memory ? "" : fmt::format("the engine {} registers no memory", ranks.engine());
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

bool RegisteredMemory::all_agree(const std::string& occasion, const std::string& mine,
                                 const std::string& reason) {
  try {
    const std::string told = reason.empty() ? mine : "none (" + reason + ")";
    require_equal_(occasion, {{{"registered memory", told}}});
    why_none_ = reason;
  } catch (const UserError& difference) {
    why_none_ = difference.what();
  }
  return why_none_.empty();
}

bool RegisteredMemory::is_possible() {
  if (!is_possible_) is_possible_ = all_agree("registered memory", "possible", try_out());
  return *is_possible_;
}

// Empty, or what went wrong here.
std::string RegisteredMemory::try_out() {
  struct Trial {
    std::unique_ptr<Communicator> ranks;
    std::unique_ptr<EngineMemory> memory;  // goes first
    std::string reason;
  };
  constexpr size_t kTried = 4096;
  std::vector<std::vector<int>> one_group{std::vector<int>(ranks_->size())};
  std::iota(one_group[0].begin(), one_group[0].end(), 0);
  const auto trial = std::make_shared<Trial>();
  trial->ranks = ranks_->split(one_group);
  const std::string reason = allocate(*trial->ranks, kTried, trial->memory);
  // Who has none tells the others before they wait for it.
  if (!all_agree("a trial of registered memory", "there", reason)) return why_none_;
  const bool ended = call_within(patience_, [trial] {
    try {
      trial->reason = trial->ranks->register_memory(*trial->memory).reason;
    } catch (const std::exception& error) {
      trial->reason = error.what();
    }
  });
  if (ended) return trial->reason;
  // The thread holds what it is in, and comes back.
  const std::string late = fmt::format("a trial was not done within {}", time_text(patience_));
  trial->ranks->abort(late);
  return late;
}

bool RegisteredMemory::agree(const std::string& occasion, const std::string& layout) {
  return is_possible() && all_agree("memory of " + occasion, layout, "");
}

std::shared_ptr<void> RegisteredMemory::make(const std::string& occasion, size_t bytes) {
  std::unique_ptr<EngineMemory> memory;
  const std::string reason = allocate(*ranks_, bytes, memory);
  if (!all_agree("memory of " + occasion, fmt::format("{} bytes", bytes), reason)) return nullptr;
  if (const Support taken = ranks_->register_memory(*memory); !taken) {
    why_none_ = taken.reason;
    return nullptr;
  }
  void* const data = memory->data();
  return {std::shared_ptr<EngineMemory>(std::move(memory)), data};
}

}  // namespace tenon::distributed
