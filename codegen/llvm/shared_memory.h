// Places in the shared memory of a CTA, and which accesses still need a barrier between them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tenon::codegen {

class SharedMemory {
 public:
  // For as long as the kernel runs.
  int64_t keep(int64_t bytes) {
    int64_t offset = kept_;
    kept_ = offset + rounded(bytes);
    total_ = std::max(total_, kept_);
    return offset;
  }
  // For one conversion. Takes turns, so that the next one need not wait until this one was read.
  int64_t borrow(int64_t bytes) {
    if (next_ < kept_ || next_ + rounded(bytes) > kept_ + kTurns) next_ = kept_;
    int64_t offset = next_;
    next_ += rounded(bytes);
    total_ = std::max(total_, next_);
    return offset;
  }
  int64_t total() const { return total_; }

  // True: a barrier must stand before this access. Notes the access.
  bool access(int64_t offset, int64_t bytes, bool write) {
    bool conflict = unknown_;
    for (const Pending& p : pending_) {
      conflict |= (write || p.write) && offset < p.end && p.begin < offset + bytes;
    }
    if (conflict) passed_barrier();
    pending_.push_back({offset, offset + bytes, write});
    return conflict;
  }
  void passed_barrier() {
    pending_.clear();
    unknown_ = false;
  }
  // Control flow joins: anything may be pending.
  void forget() { unknown_ = true; }
  bool unknown() const { return unknown_; }

 private:
  struct Pending {
    int64_t begin, end;
    bool write;
  };
  static constexpr int64_t kTurns = 16 << 10;
  static int64_t rounded(int64_t bytes) { return (bytes + 127) / 128 * 128; }

  int64_t kept_ = 0, next_ = 0, total_ = 0;
  std::vector<Pending> pending_;
  bool unknown_ = false;
};

}  // namespace tenon::codegen
