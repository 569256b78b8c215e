#include "base/guard_pages.h"

#include <cstring>

#include <gtest/gtest.h>

namespace tenon {
namespace {

TEST(GuardPages, EveryByteIsUsableAndTheNextIsNot) {
  for (const size_t bytes : {1u, 63u, 4096u, 10000u}) {
    SCOPED_TRACE(bytes);
    const auto held = guarded_bytes(bytes, 1);
    std::memset(held.get(), 7, bytes);
    EXPECT_EQ(held[bytes - 1], std::byte{7});
    EXPECT_DEATH(held[bytes] = std::byte{1}, "");
  }
}

TEST(GuardPages, AnAlignedBeginLeavesLessThanThatBehindTheEnd) {
  const auto held = guarded_bytes(100, 64);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(held.get()) % 64, 0u);
  EXPECT_DEATH(held[128] = std::byte{1}, "");
}

TEST(GuardPages, NothingIsABuffer) { EXPECT_NE(guarded_bytes(0, 64), nullptr); }

}  // namespace
}  // namespace tenon
