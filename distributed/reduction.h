// What collectives do with elements: any type may be moved, not every type may be summed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/dtype.h"
#include "base/support.h"

namespace tenon::distributed {

enum class Reduction : uint8_t { kSum, kProd, kMin, kMax, kAverage };

std::string_view name(Reduction reduction);  // "sum"
std::optional<Reduction> parse_reduction(std::string_view name);

// Whether `reduction` of elements is defined and exact enough to be asked for: e2m1, e8m0, types of
// less than a byte and strings are refused, averages of integers, anything but min and max of
// bool. A communicator may refuse more.
Support can_reduce(DType dtype, Reduction reduction);
// Everything with a width; packed types where the elements fill whole bytes.
Support can_move(DType dtype, int64_t elements);

}  // namespace tenon::distributed
