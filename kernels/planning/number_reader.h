// Numbers of a problem, as a log brings them back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "kernels/planning/kernel_config.h"

namespace tenon::kernels {

// Remembers whether one was missing or out of its range.
class NumberReader {
 public:
  explicit NumberReader(const ProblemNumbers& numbers) : numbers_(numbers) {}

  int64_t read(std::string_view name, int64_t least, int64_t most) {
    const auto found = find(name);
    if (found == numbers_.end() || found->second < least || found->second > most) {
      ok_ = false;
      return least;
    }
    return found->second;
  }
  // 0 in logs that were written before there was such a number.
  int64_t read_newer(std::string_view name, int64_t most) {
    return find(name) == numbers_.end() ? 0 : read(name, 0, most);
  }
  int read_int(std::string_view name, int least, int most) {
    return static_cast<int>(read(name, least, most));
  }
  bool ok() const { return ok_; }

 private:
  ProblemNumbers::const_iterator find(std::string_view name) const {
    return std::ranges::find(numbers_, name, [](const auto& number) { return number.first; });
  }

  const ProblemNumbers& numbers_;
  bool ok_ = true;
};

}  // namespace tenon::kernels
