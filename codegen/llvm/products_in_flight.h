// What asynchronous products (wgmma) that nobody has waited for still read.
//
// Products of a committed group read their left operand's registers until a wait covers the group.
// In a loop the same instruction writes the same register again: if the group of an earlier round
// is still in flight then, PTX leaves the result undefined, and ptxas says nothing.
#pragma once

#include <deque>
#include <string>

#include "base/support.h"

namespace llvm {
class Function;
}

namespace tenon::codegen {

// Emission time: which stage of the ring the groups in flight read. A stage may be given back for
// the next copy only when no group reads it any more.
class StagesInFlight {
 public:
  // A pipeline's step begins in a loop that keeps up to `carried` groups in flight from round to
  // round: all of them read the stage before.
  void begin_step(int carried) { stages_before_.assign(static_cast<size_t>(carried), true); }
  void commit() { stages_before_.push_back(false); }
  void wait(int running) {
    while (stages_before_.size() > static_cast<size_t>(running)) stages_before_.pop_front();
  }
  bool reads_stage_before() const { return !stages_before_.empty() && stages_before_.front(); }

 private:
  std::deque<bool> stages_before_;  // oldest group first
};

// The optimised function, along every path through it: no register that a group in flight reads is
// written before a wait for that group.
Support verify_products_in_flight(const llvm::Function& function);

// The table that the check works with: one line for every group, what it reads, and how many
// groups are in flight beside it at most; and every wait.
std::string products_in_flight_text(const llvm::Function& function);

}  // namespace tenon::codegen
