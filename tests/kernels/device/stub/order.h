// Which work comes after which: a clock per stream, moved on by events and waits, and for every
// range of memory who touched it last.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "kernels/device/driver.h"

namespace tenon::stub {

using device::Address;

// Stream number -> how many of its works are known to be done. The host's clock is of this kind
// too.
using Clock = std::map<int, int64_t>;
void join(Clock& clock, const Clock& other);

// Of a kernel only the first byte behind each pointer is known to be touched.
struct Access {
  Address base = 0;  // of the allocation
  Address begin = 0;
  size_t bytes = 1;
  bool writes = false;
};

struct WorkTime {
  int stream = 0;
  int64_t stamp = 0;  // the stream's own count, this work included
  const Clock* clock = nullptr;
};

class AccessHistory {
 public:
  // The conflict with earlier work that nothing orders before this one; empty: none.
  std::string add(const Access& access, const WorkTime& time, const std::string& work);
  void forget(Address base);
  void retire(int stream);  // all that it did is taken for done

 private:
  struct Mark {
    int stream = 0;
    int64_t stamp = 0;
    std::string work;
  };
  struct Range {
    size_t bytes = 0;
    std::optional<Mark> written;
    std::map<int, Mark> read;  // by stream
  };
  using Ranges = std::map<Address, Range>;

  static std::string conflict(const Range& range, const Access& access, const WorkTime& time,
                              const std::string& work);
  std::map<Address, Ranges> allocations_;
};

}  // namespace tenon::stub
