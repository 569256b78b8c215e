#include "kernels/llvm/scaled_dot/weight_source.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace tenon::kernels {
namespace {

// A tensor of 16-bit codes, all alike but for one.
ir::Tensor tensor_with(uint16_t code, int64_t at, int64_t count) {
  std::vector<std::byte> bytes(count * 2);
  const uint16_t other = 0x7bff;  // the largest finite f16
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(bytes.data() + i * 2, i == at ? &code : &other, 2);
  }
  return *ir::Tensor::copy(DType::kF16, {count}, bytes);
}

// Whole pieces run in vectors and what is left does not: the places around their ends.
TEST(WeightSource, FindsAnInfinityWhereverItStands) {
  for (const int64_t count : {1, 4095, 4096, 4097, 8192, 10000}) {
    for (const int64_t at : {0, 1, 4095, 4096, 8191, 9999}) {
      if (at >= count) continue;
      for (const uint16_t infinity : {0x7c00, 0xfc00}) {
        EXPECT_TRUE(contains_infinity(tensor_with(infinity, at, count), DType::kF16))
            << at << " of " << count;
      }
      for (const uint16_t nan_or_zero : {0x7c01, 0xfe00, 0x8000}) {
        EXPECT_FALSE(contains_infinity(tensor_with(nan_or_zero, at, count), DType::kF16))
            << at << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
