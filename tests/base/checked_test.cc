#include "base/checked.h"

#include <limits>

#include <gtest/gtest.h>

namespace tenon {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

TEST(Checked, ReportsOverflowAsTheModelsFault) {
  EXPECT_EQ(checked_mul(1 << 20, 1 << 20), int64_t{1} << 40);
  EXPECT_EQ(checked_add(kLargest - 1, 1), kLargest);
  EXPECT_THROW(checked_mul(kLargest, 2), UserError);
  EXPECT_THROW(checked_add(kLargest, 1), UserError);
}

}  // namespace
}  // namespace tenon
