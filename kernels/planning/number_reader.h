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
    const auto found =
        std::ranges::find(numbers_, name, [](const auto& number) { return number.first; });
    if (found == numbers_.end() || found->second < least || found->second > most) {
      ok_ = false;
      return least;
    }
    return found->second;
  }
  int read_int(std::string_view name, int least, int most) {
    return static_cast<int>(read(name, least, most));
  }
  bool ok() const { return ok_; }

 private:
  const ProblemNumbers& numbers_;
  bool ok_ = true;
};

}  // namespace tenon::kernels
