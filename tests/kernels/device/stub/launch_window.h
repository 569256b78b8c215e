// Launches of a stream that may still run, and how memory looks to one that begins beside them.
// Launches are done in order, each as a whole; what would be seen earlier is put together from what
// they wrote over. A task reads, before its wait, at one moment: some launches have ended, one is
// under way, the rest have done nothing yet. What they will write reads as it did before or, so
// that bytes which happen to be the same show too, as NaN. After its wait the previous launch has
// ended, and if that one waited so have all before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "codegen/interpret.h"

namespace tenon::stub {

class LaunchWindow final : public codegen::LaunchMemory {
 public:
  // All launches have ended.
  void clear();
  void begin(std::string name, unsigned seed);
  // Returns what was found wrong: writes to what a launch that may still run touches.
  std::vector<std::string> end();

  void begin_task() override;
  void wait() override { current_.has_waited = true; }
  const std::byte* read(const std::byte* from, size_t bytes, bool before_wait) override;
  void write(std::byte* to, size_t bytes, bool before_wait) override;

 private:
  // Ranges of addresses, joined where they touch: end by begin.
  class Ranges {
   public:
    void add(uintptr_t begin, uintptr_t end);
    bool meet(uintptr_t begin, uintptr_t end) const;

   private:
    std::map<uintptr_t, uintptr_t> ends_;
  };
  struct Write {
    uintptr_t begin = 0;
    size_t bytes = 0, before = 0;  // where in Launch::before is what it wrote over
  };
  struct Launch {
    std::string name;
    bool has_waited = false;  // one of its tasks
    Ranges touched, written;
    std::vector<Write> writes;
    std::vector<std::byte> before;
  };
  // Writes that have not happened yet: all of launches from `launch` on, but for the first
  // `writes` of that one, and up to `end`.
  struct Moment {
    size_t launch = 0, writes = 0, end = 0;
  };

  size_t perhaps_running(bool before_wait) const;
  Moment sample(size_t perhaps_running);
  const std::byte* as_of(const Moment& moment, uintptr_t begin, size_t bytes);

  std::vector<Launch> launches_;
  Launch current_;
  std::mt19937 random_;
  Moment before_wait_, after_wait_;  // when this task reads
  bool poisons_ = false;             // what is not there yet, in this launch
  std::vector<std::byte> view_;
  std::vector<std::string> findings_;
};

}  // namespace tenon::stub
