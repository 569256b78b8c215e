#include "distributed/reduction.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace tenon::distributed {
namespace {

// In the order of the enum.
constexpr std::array<std::string_view, 5> kNames{"sum", "prod", "min", "max", "average"};

Support no(DType dtype, Reduction reduction, std::string_view why) {
  return Support::no(fmt::format("no {} of {}: {}", name(reduction), name(dtype), why));
}

}  // namespace

std::string_view name(Reduction reduction) { return kNames.at(static_cast<size_t>(reduction)); }

std::optional<Reduction> parse_reduction(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Reduction>(i);
  }
  return std::nullopt;
}

Support can_reduce(DType dtype, Reduction reduction) {
  if (bit_width(dtype) == 0) return no(dtype, reduction, "the elements have no number");
  if (is_packed(dtype)) {
    return no(dtype, reduction, "elements of less than a byte are moved only");
  }
  if (dtype == DType::kF8E8M0) {
    return no(dtype, reduction, "it holds scales, which are powers of two");
  }
  const bool picks_one = reduction == Reduction::kMin || reduction == Reduction::kMax;
  if (dtype == DType::kBool && !picks_one) {
    return no(dtype, reduction, "ask for min (and) or max (or)");
  }
  if (reduction == Reduction::kAverage && !is_floating(dtype)) {
    return no(dtype, reduction, "it would be rounded");
  }
  return Support::yes();
}

Support can_move(DType dtype, int64_t elements) {
  const int bits = bit_width(dtype);
  if (bits == 0) {
    return Support::no(fmt::format("elements of type {} cannot be moved", name(dtype)));
  }
  if (is_packed(dtype) && elements % (8 / bits) != 0) {
    return Support::no(
        fmt::format("{} elements of {} do not fill whole bytes; give a multiple of {}", elements,
                    name(dtype), 8 / bits));
  }
  return Support::yes();
}

}  // namespace tenon::distributed
