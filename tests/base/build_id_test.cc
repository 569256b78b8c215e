#include "base/build_id.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace tenon {
namespace {

int ours = 0;

TEST(BuildIdTest, TellsLibrariesApartAndIsTheSameAllOverOne) {
  const std::string own = build_id(&ours);
  EXPECT_FALSE(own.empty());
  EXPECT_EQ(own, build_id(reinterpret_cast<const void*>(&build_id)));
  const std::string libc = build_id(reinterpret_cast<const void*>(&std::puts));
  EXPECT_FALSE(libc.empty());
  EXPECT_NE(own, libc);
}

TEST(BuildIdTest, AnAddressOfNoLibraryIsNoError) { EXPECT_EQ(build_id(nullptr), "unknown"); }

}  // namespace
}  // namespace tenon
