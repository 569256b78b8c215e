#include "distributed/gloo/gloo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "distributed/gloo/address.h"
#include "distributed/gloo/load.h"
#include "tests/distributed/processes.h"

namespace tenon::distributed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(GlooLibraryTest, AnAbsentLibraryIsAReasonThatSaysWhatToInstall) {
  const GlooLibrary absent = open_gloo_library("/nowhere/libtenon_gloo.so");
  EXPECT_EQ(absent.functions, nullptr);
  EXPECT_THAT(absent.why, AllOf(HasSubstr("/nowhere/libtenon_gloo.so"), HasSubstr("libgloo0")));
  const GlooLibrary other = open_gloo_library("libm.so.6");
  EXPECT_EQ(other.functions, nullptr);
  EXPECT_THAT(other.why, HasSubstr("libm.so.6 was built for another version of Tenon"));
}

TEST(GlooArgumentsTest, WrongOnesAreRefused) {
  if (const Support there = gloo_support(); !there) GTEST_SKIP() << there.reason;
  const TemporaryFolder folder;
  const auto refusal = [&](int rank, int size, const GlooSettings& settings) {
    try {
      (void)make_gloo(rank, size, file_store(folder.path(), rank), settings);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(refusal(2, 2, {}), HasSubstr("rank 2 is none of 2 ranks"));
  EXPECT_THAT(refusal(-1, 2, {}), HasSubstr("rank -1 is none of 2 ranks"));
  EXPECT_THAT(refusal(0, -3, {}), HasSubstr("-3 ranks were asked for"));
  EXPECT_THAT(refusal(0, 1, {{std::chrono::milliseconds(0)}, "127.0.0.1"}),
              HasSubstr("must be positive"));
  EXPECT_THAT(refusal(0, 1, {{}, "no.such.host.invalid"}), HasSubstr("'no.such.host.invalid'"));
  EXPECT_THAT(refusal(0, 1, {{}, ""}), HasSubstr("no host that this one knows"));
  EXPECT_THAT(refusal(0, 1, {{}, "192.0.2.1"}),  // an address of documentation, nobody's
              AllOf(HasSubstr("'192.0.2.1'"), HasSubstr("give an address of this host")));
  EXPECT_EQ(refusal(0, 1, {{}, "localhost"}), "none");
}

TEST(GlooAddressTest, IsTheOneThatReachesTheOtherHost) {
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(own_address("127.0.0.1"), "127.0.0.1");
  EXPECT_THROW(address_towards("no.such.host.invalid"), UserError);
  EXPECT_THROW(own_address("192.0.2.1"), UserError);
}

}  // namespace
}  // namespace tenon::distributed
