#include "distributed/rendezvous/job_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tenon::distributed {
namespace {

using testing::HasSubstr;
using testing::Not;

// RFC 4231, test cases 1, 2, 3, 6 and 7.
TEST(JobToken, HmacAgreesWithTheStandard) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256(std::string_view("Jefe"), "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'),
                            "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'),
                            "This is a test using a larger than block-size key and a larger than "
                            "block-size data. The key needs to be hashed before being used by the "
                            "HMAC algorithm.")),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(JobToken, ReadsSixtyFourDigitsAndNothingElse) {
  const std::string text = "00ffA9b30000000000000000000000000000000000000000000000000000007f";
  const JobToken token = parse_token(text, "collective_token");
  EXPECT_EQ(token[0], 0x00);
  EXPECT_EQ(token[1], 0xff);
  EXPECT_EQ(token[2], 0xa9);
  EXPECT_EQ(token[31], 0x7f);
  for (const std::string& bad : {std::string("secret"), text + "0", text.substr(1),
                                 "g" + text.substr(1), std::string(64, ' '), std::string()}) {
    try {
      parse_token(bad, "TENON_COLLECTIVE_TOKEN");
      FAIL() << bad;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("TENON_COLLECTIVE_TOKEN"));
      if (!bad.empty()) {
        EXPECT_THAT(error.what(), Not(HasSubstr(bad))) << "a secret in a message";
      }
    }
  }
}

TEST(JobToken, DerivedOnesDifferByJobAndUser) {
  const JobToken token = derived_token("Slurm", "12.0", 1000);
  EXPECT_EQ(token, derived_token("Slurm", "12.0", 1000));
  EXPECT_NE(token, derived_token("Slurm", "12.1", 1000));
  EXPECT_NE(token, derived_token("Slurm", "12.0", 1001));
  EXPECT_NE(token, derived_token("torchrun", "12.0", 1000));
}

TEST(JobToken, ComparesEveryByte) {
  const Digest digest = sha256("a");
  EXPECT_TRUE(equal(digest, digest));
  for (size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    other[i] ^= 1;
    EXPECT_FALSE(equal(digest, other)) << i;
  }
}

}  // namespace
}  // namespace tenon::distributed
