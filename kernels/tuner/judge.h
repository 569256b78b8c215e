// Whether two plans of one fusion give the same numbers.
#pragma once

#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

struct HostOutput {
  DType dtype{};
  int64_t elements = 0;
  std::vector<std::byte> bytes;
};

// By how much plans may differ: sums come in another order, and attention rounds probabilities to
// the type of v. Of floats |a - b| <= tolerance * (|b| + rms of b), of codes |a - b| <= tolerance.
double tolerance_of(DType dtype, Precision precision);

// Empty: `got` is what `trusted` is. Else the first difference that is too large.
std::string find_difference(const std::vector<HostOutput>& got,
                            const std::vector<HostOutput>& trusted, Precision precision);

}  // namespace tenon::kernels
