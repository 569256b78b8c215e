#include "base/dtype.h"

#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"

namespace tenon {
namespace {

TEST(DType, NamesParseBack) {
  for (int i = 0; i <= static_cast<int>(DType::kString); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("float32"), std::nullopt);
}

TEST(DType, StorageRoundsUpToWholeBytes) {
  EXPECT_EQ(storage_bytes(DType::kF4E2M1, 3), 2u);
  EXPECT_EQ(storage_bytes(DType::kU2, 5), 2u);
  EXPECT_EQ(storage_bytes(DType::kI4, 0), 0u);
  EXPECT_EQ(storage_bytes(DType::kF64, 3), 24u);
  EXPECT_THROW(storage_bytes(DType::kF32, std::numeric_limits<int64_t>::max() / 8), UserError);
  EXPECT_THROW(storage_bytes(DType::kF32, -1), UserError);
}

TEST(DType, FamiliesAreToldApart) {
  EXPECT_TRUE(is_floating(DType::kF8E8M0) && !is_signed(DType::kF8E8M0));
  EXPECT_TRUE(is_integer(DType::kU4) && !is_signed(DType::kU4) && is_packed(DType::kU4));
  EXPECT_FALSE(is_integer(DType::kBool) || is_floating(DType::kBool) || is_packed(DType::kBool));
  EXPECT_TRUE(is_small_float(DType::kF4E2M1) && !is_small_float(DType::kF16));
  EXPECT_FALSE(is_packed(DType::kString));
}

}  // namespace
}  // namespace tenon
