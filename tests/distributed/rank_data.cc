#include "tests/distributed/rank_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/convert.h"

namespace tenon::distributed {
namespace {

uint64_t mask(DType dtype) {
  const int bits = bit_width(dtype);
  return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
}

bool less(DType dtype, uint64_t a, uint64_t b) {
  if (!is_signed(dtype)) return a < b;
  const int shift = 64 - bit_width(dtype);
  return static_cast<int64_t>(a << shift) < static_cast<int64_t>(b << shift);
}

uint64_t reduce_codes(DType dtype, Reduction reduction, const std::vector<uint64_t>& codes) {
  uint64_t result = codes[0];
  for (size_t i = 1; i < codes.size(); ++i) {
    const uint64_t next = codes[i];
    if (reduction == Reduction::kSum) result = (result + next) & mask(dtype);
    if (reduction == Reduction::kProd) result = (result * next) & mask(dtype);
    if (reduction == Reduction::kMin && less(dtype, next, result)) result = next;
    if (reduction == Reduction::kMax && less(dtype, result, next)) result = next;
  }
  return result;
}

struct Interval {
  double low, high;
};

// Where a float must lie that was computed step by step with the precision of the accumulator.
Interval reduce_values(DType dtype, Reduction reduction, const std::vector<double>& values) {
  if (reduction == Reduction::kMin || reduction == Reduction::kMax) {
    const auto [least, most] = std::ranges::minmax(values);
    const double result = reduction == Reduction::kMin ? least : most;
    return {result, result};
  }
  double sum = 0, size = 0, product = 1;
  for (const double value : values) {
    sum += value;
    size += std::fabs(value);
    product *= value;
  }
  const double ranks = static_cast<double>(values.size());
  const double divisor = reduction == Reduction::kAverage ? ranks : 1;
  const double result = reduction == Reduction::kProd ? product : sum / divisor;
  const double scale = reduction == Reduction::kProd ? std::fabs(product) : size / divisor;
  // 2^-24 and 2^-53 are half a unit in the last place; the float64 here errs as well.
  const double error = ranks * scale * std::ldexp(1, dtype == DType::kF64 ? -52 : -24);
  const auto rounded = [&](double value) { return decode(dtype, encode(dtype, value)); };
  return {rounded(result - error), rounded(result + error)};
}

}  // namespace

Bytes random_elements(DType dtype, int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(dtype));
  Bytes bytes(storage_bytes(dtype, count));
  std::uniform_real_distribution<double> between(-2, 2);
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kBool) {
      store_code(dtype, bytes.data(), i, random() & 1);
    } else if (is_integer(dtype) || dtype == DType::kF8E8M0) {
      store_code(dtype, bytes.data(), i, random() & mask(dtype));
    } else {
      store_element(dtype, bytes.data(), i, between(random));
    }
  }
  return bytes;
}

std::string wrong_reduction(DType dtype, Reduction reduction, const std::vector<Bytes>& inputs,
                            int64_t begin, const void* out, int64_t count) {
  const auto what = [&](int64_t element) {
    return fmt::format("{} of {}, element {}", name(reduction), name(dtype), element);
  };
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t got = load_code(dtype, out, i);
    std::vector<uint64_t> codes;
    std::vector<double> values;
    for (const Bytes& input : inputs) {
      codes.push_back(load_code(dtype, input.data(), begin + i));
      values.push_back(decode(dtype, codes.back()));
    }
    if (!is_floating(dtype)) {
      const uint64_t wanted = reduce_codes(dtype, reduction, codes);
      if (got != wanted) return fmt::format("{}: {:#x} instead of {:#x}", what(i), got, wanted);
      continue;
    }
    const Interval wanted = reduce_values(dtype, reduction, values);
    const double value = decode(dtype, got);
    if (!(wanted.low <= value && value <= wanted.high)) {
      return fmt::format("{}: {} is not in [{}, {}]", what(i), value, wanted.low, wanted.high);
    }
  }
  return "";
}

}  // namespace tenon::distributed
