// Memory that the ranks of one host have in common. It has no name in any file system: rank 0 makes
// it, the others open it through rank 0's entry in /proc, and it is gone with the last of them,
// however they end.
#pragma once

#include <cstddef>
#include <string>

#include "base/support.h"

namespace tenon::distributed {

class SharedSegment {
 public:
  SharedSegment() = default;
  ~SharedSegment();
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;

  // Zeros, of so many bytes; pages are taken when they are touched.
  static Support make(size_t bytes, SharedSegment& made);
  // What another process has to know to open it: where it is and a secret that is in it, by which
  // it is told apart from whatever else has that place.
  std::string address() const;
  static Support open(const std::string& address, size_t bytes, SharedSegment& opened);

  char* memory() const { return memory_; }

  // This process is there as `rank`, until it ends or the segment is destroyed. Processes that were
  // forked from it, and did not exec, count as well.
  Support enter(int rank) const;
  bool is_there(int rank) const;

 private:
  Support map(size_t bytes);

  int file_ = -1;
  size_t bytes_ = 0;
  char* memory_ = nullptr;  // behind the secret
  char* mapped_ = nullptr;
};

}  // namespace tenon::distributed
