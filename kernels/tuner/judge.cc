#include "kernels/tuner/judge.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "base/convert.h"
#include "base/thread_pool.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements that a thread compares at a time

int64_t chunks_of(int64_t elements) { return (elements + kChunk - 1) / kChunk; }

// What the codes of a type of up to 16 bits stand for: logits of a prompt are hundreds of millions
// of elements, and decoding one takes 50 ns.
std::vector<double> make_decoded(DType dtype) {
  std::vector<double> decoded(size_t{1} << bit_width(dtype));
  for (size_t code = 0; code < decoded.size(); ++code) decoded[code] = decode(dtype, code);
  return decoded;
}

class Elements {
 public:
  explicit Elements(const HostOutput& output)
      : dtype_(output.dtype), data_(output.bytes.data()), decoded_(decoded_of(output)) {}

  double operator[](int64_t index) const {
    if (!decoded_.empty()) return decoded_[code(index)];
    if (dtype_ == DType::kF32) {
      float number = 0;
      std::memcpy(&number, data_ + index * int64_t{sizeof number}, sizeof number);
      return number;
    }
    return load_element(dtype_, data_, index);
  }

 private:
  // Of few elements none is worth a table.
  static std::vector<double> decoded_of(const HostOutput& output) {
    const bool is_worth_it = bit_width(output.dtype) <= 16 && output.elements > kChunk;
    return is_worth_it ? make_decoded(output.dtype) : std::vector<double>{};
  }

  uint64_t code(int64_t index) const {
    if (bit_width(dtype_) != 16) return load_code(dtype_, data_, index);
    uint16_t code = 0;
    std::memcpy(&code, data_ + index * int64_t{sizeof code}, sizeof code);
    return code;
  }

  DType dtype_;
  const std::byte* data_;
  std::vector<double> decoded_;
};

double rms_of(const HostOutput& output) {
  const Elements elements(output);
  std::vector<double> sums(static_cast<size_t>(chunks_of(output.elements)));
  parallel_for_each(static_cast<int64_t>(sums.size()), [&](int64_t chunk) {
    const int64_t last = std::min(output.elements, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < last; ++i) {
      const double value = elements[i];
      if (std::isfinite(value)) sums[static_cast<size_t>(chunk)] += value * value;
    }
  });
  double sum = 0;
  for (const double each : sums) sum += each;
  return output.elements == 0 ? 0 : std::sqrt(sum / static_cast<double>(output.elements));
}

// What two elements may differ by: relative to the trusted one, and at all.
struct Bound {
  double relative = 0, absolute = 0;

  bool allows(double got, double trusted) const {
    if (std::isnan(trusted)) return std::isnan(got);
    if (std::isinf(trusted)) return got == trusted;
    return std::abs(got - trusted) <= relative * std::abs(trusted) + absolute;
  }
};

// The first element that differs; `elements`: none.
int64_t first_difference(const HostOutput& got, const HostOutput& trusted, const Bound& bound) {
  const Elements ours(got), theirs(trusted);
  std::atomic<int64_t> first = trusted.elements;
  parallel_for_each(chunks_of(trusted.elements), [&](int64_t chunk) {
    const int64_t last = std::min(trusted.elements, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < last; ++i) {
      if (bound.allows(ours[i], theirs[i])) continue;
      int64_t known = first.load();
      while (i < known && !first.compare_exchange_weak(known, i)) {
      }
      return;
    }
  });
  return first.load();
}

}  // namespace

double tolerance_of(DType dtype, Precision precision) {
  // Of int8 activations every one of K terms is off by half a step; of tf32 operands by 2^-11.
  const double operands = precision == Precision::kInt8   ? 0x1p-5
                          : precision == Precision::kTf32 ? 0x1p-9
                                                          : 0;
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
      return std::max(operands, 0x1p-14);
    case DType::kF16:
      return std::max(operands, 0x1p-8);
    case DType::kBF16:
      return std::max(operands, 0x1p-6);
    default:
      return is_floating(dtype) ? 0.25 : 1.0;  // codes of 8 bits and fewer: the next one
  }
}

std::string find_difference(const std::vector<HostOutput>& got,
                            const std::vector<HostOutput>& trusted, Precision precision) {
  for (size_t i = 0; i < trusted.size(); ++i) {
    if (got[i].bytes == trusted[i].bytes) continue;  // caches: gigabytes, of which rows are new
    const double tolerance = tolerance_of(trusted[i].dtype, precision);
    const Bound bound = is_floating(trusted[i].dtype)
                            ? Bound{tolerance, tolerance * rms_of(trusted[i])}
                            : Bound{0, tolerance};
    const int64_t at = first_difference(got[i], trusted[i], bound);
    if (at == trusted[i].elements) continue;
    return fmt::format("element {} of output {} is {:g}, and {:g} by the plan that is trusted", at,
                       i, load_element(got[i].dtype, got[i].bytes.data(), at),
                       load_element(trusted[i].dtype, trusted[i].bytes.data(), at));
  }
  return "";
}

}  // namespace tenon::kernels
