#include "distributed/element_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/convert.h"
#include "base/error.h"
#include "distributed/short_floats.h"

namespace tenon::distributed {
namespace {

// A block's accumulators stay in the nearest cache while all ranks are read.
constexpr int64_t kBlock = 1024;

template <typename T>
T wrapping_sum(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <typename T>
T wrapping_product(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return wrapping_sum(a, b);
    return a + b;
  }
};
struct Product {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return wrapping_product(a, b);
    return a * b;
  }
};
// Of equal ones, such as two zeros of different sign, the first stays.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return b < a || (b != b && a == a) ? b : a;
    return b < a ? b : a;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return b > a || (b != b && a == a) ? b : a;
    return b > a ? b : a;
  }
};

// Elements that are computed in the type that they are stored in.
template <typename T>
struct Plain {
  using Value = T;
  Value load(const void* data, int64_t index) const {
    T value;
    std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
    return value;
  }
  void store(void* data, int64_t index, Value value) const {
    std::memcpy(static_cast<char*>(data) + index * sizeof(T), &value, sizeof(T));
  }
};

// Any byte but zero is true.
struct Truth {
  using Value = uint8_t;
  Value load(const void* data, int64_t index) const {
    return static_cast<const uint8_t*>(data)[index] != 0;
  }
  void store(void* data, int64_t index, Value value) const {
    static_cast<uint8_t*>(data)[index] = value;
  }
};

// Floats of 16 bits.
template <float (*kFrom)(uint16_t), uint16_t (*kTo)(float)>
struct Short {
  using Value = float;
  Value load(const void* data, int64_t index) const {
    return kFrom(Plain<uint16_t>().load(data, index));
  }
  void store(void* data, int64_t index, Value value) const {
    Plain<uint16_t>().store(data, index, kTo(value));
  }
};

// Floats of 8 bits: decoded by table, which holds every one of them.
struct Coded {
  using Value = float;
  DType dtype;
  const std::vector<float>& values;
  Value load(const void* data, int64_t index) const {
    return values[load_code(dtype, data, index)];
  }
  void store(void* data, int64_t index, Value value) const {
    store_element(dtype, data, index, value);
  }
};

template <DType kType>
Coded coded() {
  static const std::vector<float> values = [] {
    std::vector<float> made(size_t{1} << bit_width(kType));
    for (size_t code = 0; code < made.size(); ++code) {
      made[code] = static_cast<float>(decode(kType, code));
    }
    return made;
  }();
  return {kType, values};
}

template <typename Elements, typename Operation>
void reduce_with(const Elements& elements, Operation operation, bool average,
                 std::span<const void* const> inputs, void* out, int64_t count) {
  using Value = typename Elements::Value;
  std::array<Value, kBlock> sums;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    for (int64_t i = 0; i < size; ++i) sums[i] = elements.load(inputs[0], begin + i);
    for (const void* input : inputs.subspan(1)) {
      for (int64_t i = 0; i < size; ++i) {
        sums[i] = operation(sums[i], elements.load(input, begin + i));
      }
    }
    if constexpr (std::is_floating_point_v<Value>) {
      const auto divisor = static_cast<Value>(average ? inputs.size() : 1);
      for (int64_t i = 0; average && i < size; ++i) sums[i] /= divisor;
    }
    for (int64_t i = 0; i < size; ++i) elements.store(out, begin + i, sums[i]);
  }
}

template <typename Elements>
void reduce_as(const Elements& elements, Reduction reduction, std::span<const void* const> inputs,
               void* out, int64_t count) {
  switch (reduction) {
    case Reduction::kSum:
      return reduce_with(elements, Sum(), false, inputs, out, count);
    case Reduction::kAverage:
      return reduce_with(elements, Sum(), true, inputs, out, count);
    case Reduction::kProd:
      return reduce_with(elements, Product(), false, inputs, out, count);
    case Reduction::kMin:
      return reduce_with(elements, Min(), false, inputs, out, count);
    case Reduction::kMax:
      return reduce_with(elements, Max(), false, inputs, out, count);
  }
}

}  // namespace

void reduce_elements(DType dtype, Reduction reduction, std::span<const void* const> inputs,
                     void* out, int64_t count) {
  if (const Support answer = can_reduce(dtype, reduction); !answer) {
    throw InternalError(answer.reason);
  }
  const auto as = [&](const auto& elements) { reduce_as(elements, reduction, inputs, out, count); };
  switch (dtype) {
    case DType::kBool:
      return as(Truth());
    case DType::kI8:
      return as(Plain<int8_t>());
    case DType::kU8:
      return as(Plain<uint8_t>());
    case DType::kI16:
      return as(Plain<int16_t>());
    case DType::kU16:
      return as(Plain<uint16_t>());
    case DType::kI32:
      return as(Plain<int32_t>());
    case DType::kU32:
      return as(Plain<uint32_t>());
    case DType::kI64:
      return as(Plain<int64_t>());
    case DType::kU64:
      return as(Plain<uint64_t>());
    case DType::kF8E4M3FN:
      return as(coded<DType::kF8E4M3FN>());
    case DType::kF8E4M3FNUZ:
      return as(coded<DType::kF8E4M3FNUZ>());
    case DType::kF8E5M2:
      return as(coded<DType::kF8E5M2>());
    case DType::kF8E5M2FNUZ:
      return as(coded<DType::kF8E5M2FNUZ>());
    case DType::kF16:
      return as(Short<from_f16, to_f16>());
    case DType::kBF16:
      return as(Short<from_bf16, to_bf16>());
    case DType::kF32:
      return as(Plain<float>());
    case DType::kF64:
      return as(Plain<double>());
    default:
      throw InternalError(fmt::format("no reduction of {} was written", name(dtype)));
  }
}

}  // namespace tenon::distributed
