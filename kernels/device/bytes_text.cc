#include "kernels/device/bytes_text.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace tenon::device {

std::string bytes_text(size_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double number = static_cast<double>(bytes);
  size_t unit = 0;
  for (; number >= 1024 && unit + 1 < kUnits.size(); ++unit) number /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", number, kUnits[unit]);
}

}  // namespace tenon::device
