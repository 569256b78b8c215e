#include "distributed/rendezvous/greeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tenon::distributed {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint16_t kPort = 30'500;
constexpr size_t kVersionAt = 12;  // behind the magic

class Greeting : public testing::Test {
 protected:
  const JobToken token_ = sha256("token"), other_ = sha256("other");
  const Nonce nonce_ = new_nonce();
};

TEST_F(Greeting, EndsWellWhereBothKnowTheToken) {
  const Answer reply = answer(challenge(nonce_), token_, kPort);
  EXPECT_EQ(reply.objection, "");
  EXPECT_LE(reply.frame.size(), kGreetingBytes);
  const Verdict verdict = judge(reply.frame, nonce_, token_, kPort);
  EXPECT_TRUE(verdict.accepted);
  EXPECT_EQ(read_verdict(verdict.frame, reply.meeting), Welcome::kAccepted);
}

TEST_F(Greeting, GivesEachDirectionOfEachConnectionAKey) {
  const Answer reply = answer(challenge(nonce_), token_, kPort);
  const FrameKeys server = judge(reply.frame, nonce_, token_, kPort).keys;
  const FrameKeys client = client_keys(reply.meeting);
  EXPECT_EQ(server.sending, client.receiving);
  EXPECT_EQ(server.receiving, client.sending);
  EXPECT_NE(server.sending, server.receiving);
  const Answer again = answer(challenge(nonce_), token_, kPort);
  EXPECT_NE(client_keys(again.meeting).sending, client.sending);
  EXPECT_NE(client_keys(again.meeting).receiving, client.receiving);
}

TEST_F(Greeting, RefusesAnotherToken) {
  const Answer reply = answer(challenge(nonce_), other_, kPort);
  const Verdict verdict = judge(reply.frame, nonce_, token_, kPort);
  EXPECT_FALSE(verdict.accepted);
  EXPECT_EQ(verdict.reason, "wrong token");
  EXPECT_EQ(read_verdict(verdict.frame, reply.meeting), Welcome::kWrongToken);
}

TEST_F(Greeting, RefusesWhatWasSaidToAnotherPort) {
  const Answer reply = answer(challenge(nonce_), token_, kPort);
  const Verdict verdict = judge(reply.frame, nonce_, token_, kPort + 1);
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, AllOf(HasSubstr("port 30500"), HasSubstr("port 30501"),
                                    HasSubstr("a stranger stands between the ranks")));
  EXPECT_EQ(read_verdict(verdict.frame, reply.meeting), Welcome::kOtherPort);
}

TEST_F(Greeting, DoesNotTakeAnAnswerTwiceNorTheServersProofForTheClients) {
  const Answer reply = answer(challenge(nonce_), token_, kPort);
  EXPECT_FALSE(judge(reply.frame, new_nonce(), token_, kPort).accepted) << "a replay";
  // A server that does not know the token sends the client's own proof back.
  const std::string reflected = std::string(1, '\1') + reply.frame.substr(50);
  ASSERT_EQ(reflected.size(), 33);
  EXPECT_EQ(read_verdict(reflected, reply.meeting), Welcome::kUnknown);
}

TEST_F(Greeting, NamesBothVersionsToBothSides) {
  std::string newer = challenge(nonce_);
  newer[kVersionAt] = 7;
  const Answer reply = answer(newer, token_, kPort);
  EXPECT_TRUE(reply.other_version);
  EXPECT_THAT(reply.objection, AllOf(HasSubstr("version 7"), HasSubstr("version 2"),
                                     HasSubstr("the same version of Tenon")));
  // What it sends all the same tells rank 0.
  std::string said = reply.frame;
  ASSERT_GT(said.size(), kVersionAt);
  said[kVersionAt] = 7;
  const Verdict verdict = judge(said, nonce_, token_, kPort);
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, HasSubstr("version 7"));
}

TEST_F(Greeting, TakesNoOtherBytes) {
  const std::string good_challenge = challenge(nonce_);
  const Answer reply = answer(good_challenge, token_, kPort);
  const Verdict verdict = judge(reply.frame, nonce_, token_, kPort);
  for (size_t length = 0; length < good_challenge.size(); ++length) {
    EXPECT_NE(answer(good_challenge.substr(0, length), token_, kPort).objection, "") << length;
  }
  for (size_t length = 0; length < reply.frame.size(); ++length) {
    EXPECT_FALSE(judge(reply.frame.substr(0, length), nonce_, token_, kPort).accepted) << length;
  }
  for (size_t length = 0; length < verdict.frame.size(); ++length) {
    EXPECT_NE(read_verdict(verdict.frame.substr(0, length), reply.meeting), Welcome::kAccepted);
  }
  for (size_t place = 0; place < reply.frame.size(); ++place) {
    std::string flipped = reply.frame;
    flipped[place] ^= 1;
    EXPECT_FALSE(judge(flipped, nonce_, token_, kPort).accepted) << place;
  }
  for (size_t place = 0; place < verdict.frame.size(); ++place) {
    std::string flipped = verdict.frame;
    flipped[place] ^= 1;
    EXPECT_NE(read_verdict(flipped, reply.meeting), Welcome::kAccepted) << place;
  }
  EXPECT_NE(answer(good_challenge + "x", token_, kPort).objection, "");
  EXPECT_FALSE(judge(reply.frame + "x", nonce_, token_, kPort).accepted);
  EXPECT_NE(read_verdict(verdict.frame + "x", reply.meeting), Welcome::kAccepted);
  const Answer ssh = answer("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3", token_, kPort);
  EXPECT_THAT(ssh.objection, HasSubstr("something else"));
  EXPECT_EQ(ssh.frame, "");
}

}  // namespace
}  // namespace tenon::distributed
