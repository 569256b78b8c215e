#include "base/nearest_name.h"

#include <gtest/gtest.h>

namespace tenon {
namespace {

constexpr std::string_view kNames[] = {"precision_mode", "claim", "sm_80", "sm_90a", "sm_100a"};

TEST(NearestName, IsTheOneThatWasMeant) {
  EXPECT_EQ(nearest_name("precison_mode", kNames), "precision_mode");
  EXPECT_EQ(nearest_name("precision-mode", kNames), "precision_mode");
  EXPECT_EQ(nearest_name("clam", kNames), "claim");
  EXPECT_EQ(nearest_name("sm_90", kNames), "sm_90a");
  EXPECT_EQ(nearest_name("sm_100", kNames), "sm_100a");
}

TEST(NearestName, IsNoneWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("no_such_option", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  EXPECT_EQ(nearest_name("x", kNames), "");
  EXPECT_EQ(nearest_name("claim", {}), "");
}

TEST(NearestName, StandsInAnErrorsText) {
  EXPECT_EQ(did_you_mean("clam", kNames), " (did you mean 'claim'?)");
  EXPECT_EQ(did_you_mean("something else", kNames), "");
}

}  // namespace
}  // namespace tenon
