#include "distributed/rendezvous/frame_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "base/error.h"
#include "distributed/rendezvous/store_message.h"

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

class Channel : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    left_.emplace(Socket(fds[0]), 1 << 20);
    raw_ = fds[1];
    right_.emplace(Socket(fds[1]), 1000);
  }
  void send_raw(std::string_view bytes) {
    ASSERT_EQ(::send(left_->fd(), bytes.data(), bytes.size(), 0), ssize_t(bytes.size()));
  }

  std::optional<FrameChannel> left_, right_;
  int raw_ = -1;
};

TEST_F(Channel, CarriesFramesWholeAndInOrder) {
  for (const std::string& frame : {std::string("one"), std::string(), std::string(1000, 'x')}) {
    left_->push(frame);
  }
  left_->flush();
  EXPECT_FALSE(left_->has_output());
  EXPECT_TRUE(right_->fill());
  EXPECT_EQ(right_->next(), "one");
  EXPECT_EQ(right_->next(), "");
  EXPECT_EQ(right_->next(), std::string(1000, 'x'));
  EXPECT_EQ(right_->next(), std::nullopt);
  EXPECT_EQ(right_->ended(), "");
}

TEST_F(Channel, PutsFramesTogetherByteByByte) {
  const std::string bytes("\3\0\0\0abc\1\0\0\0d", 12);
  std::string got;
  for (const char byte : bytes) {
    send_raw({&byte, 1});
    right_->fill();
    while (const auto frame = right_->next()) got += *frame + "|";
  }
  EXPECT_EQ(got, "abc|d|");
}

TEST_F(Channel, CutsOffWhoAnnouncesTooMuch) {
  send_raw("GET / HTTP/1.1\r\n\r\n");
  right_->fill();
  EXPECT_EQ(right_->next(), std::nullopt);
  EXPECT_TRUE(right_->broke_rules());
  EXPECT_THAT(right_->ended(), HasSubstr("at most 1000"));
}

class SignedChannel : public Channel {
 protected:
  void SetUp() override {
    Channel::SetUp();
    const FrameKeys keys{.sending = sha256("there"), .receiving = sha256("back")};
    left_->sign_frames(keys);
    right_->sign_frames({.sending = keys.receiving, .receiving = keys.sending});
  }
  // What the left side sends, not yet on its way to the right side.
  std::string bytes_of_frame(std::string_view frame) {
    left_->push(frame);
    left_->flush();
    std::string bytes(4096, ' ');
    bytes.resize(static_cast<size_t>(::recv(raw_, bytes.data(), bytes.size(), 0)));
    return bytes;
  }
  std::optional<std::string> arrives(std::string_view bytes) {
    send_raw(bytes);
    right_->fill();
    return right_->next();
  }
  void expect_that_it_ended() {
    EXPECT_TRUE(right_->broke_rules());
    EXPECT_THAT(right_->ended(), AllOf(HasSubstr("MAC"), HasSubstr("different versions")));
    EXPECT_EQ(arrives(bytes_of_frame("true")), std::nullopt) << "nothing is believed any more";
  }
};

TEST_F(SignedChannel, CarriesFramesBothWays) {
  for (const std::string& frame : {std::string("one"), std::string(), std::string(1000, 'x')}) {
    left_->push(frame);
    left_->flush();
    right_->fill();
    EXPECT_EQ(right_->next(), frame);
    right_->push(frame);
    right_->flush();
    left_->fill();
    EXPECT_EQ(left_->next(), frame);
  }
}

TEST_F(SignedChannel, WaitsForTheWholeMac) {
  const std::string bytes = bytes_of_frame("frame");
  ASSERT_EQ(bytes.size(), 4 + 5 + 16);
  for (size_t i = 0; i + 1 < bytes.size(); ++i) EXPECT_EQ(arrives({&bytes[i], 1}), std::nullopt);
  EXPECT_EQ(arrives({&bytes.back(), 1}), "frame");
}

TEST_F(SignedChannel, EndsAtAnyChangedBit) {
  for (size_t place = 0; place < 4 + 5 + 16; ++place) {
    SetUp();
    std::string bytes = bytes_of_frame("frame");
    bytes[place] ^= 1;
    // A length that grew waits for more.
    EXPECT_EQ(arrives(bytes + std::string(place == 1 ? 256 : 1, ' ')), std::nullopt);
    if (place == 2 || place == 3) {
      EXPECT_TRUE(right_->broke_rules()) << "longer than what is taken";
    } else {
      expect_that_it_ended();
    }
  }
}

TEST_F(SignedChannel, EndsAtARepeatedFrame) {
  const std::string bytes = bytes_of_frame("frame");
  EXPECT_EQ(arrives(bytes), "frame");
  EXPECT_EQ(arrives(bytes), std::nullopt);
  expect_that_it_ended();
}

TEST_F(SignedChannel, EndsWhereFramesChangePlaces) {
  const std::string first = bytes_of_frame("first"), second = bytes_of_frame("second");
  EXPECT_EQ(arrives(second + first), std::nullopt);
  expect_that_it_ended();
}

TEST_F(SignedChannel, EndsWhereAFrameIsMissing) {
  (void)bytes_of_frame("first");
  EXPECT_EQ(arrives(bytes_of_frame("second")), std::nullopt);
  expect_that_it_ended();
}

TEST_F(SignedChannel, EndsAtItsOwnFramesSentBack) {
  right_->push("echo");
  right_->flush();
  std::string bytes(64, ' ');
  bytes.resize(static_cast<size_t>(::recv(left_->fd(), bytes.data(), bytes.size(), 0)));
  EXPECT_EQ(arrives(bytes), std::nullopt);
  expect_that_it_ended();
}

TEST_F(SignedChannel, EndsAtAFrameWithoutMac) {
  EXPECT_EQ(arrives(std::string("\1\0\0\0d", 5) + std::string(16, 'x')), std::nullopt);
  expect_that_it_ended();
}

TEST_F(Channel, RefusesToSendWhatTheOtherSideWouldNotTake) {
  EXPECT_THROW(right_->push(std::string(1001, 'x')), InternalError);
}

TEST_F(Channel, GivesWhatCameBeforeTheEnd) {
  left_->push("last words");
  left_->flush();
  left_->close();
  right_->fill();
  EXPECT_EQ(right_->next(), "last words");
  EXPECT_THAT(right_->ended(), HasSubstr("closed"));
  EXPECT_FALSE(right_->broke_rules());
}

TEST_F(Channel, EndsForOneWhoDoesNotRead) {
  const std::string frame(1 << 20, 'x');
  for (int i = 0; i < 70; ++i) {
    left_->push(frame);
    left_->flush();
  }
  EXPECT_THAT(left_->ended(), HasSubstr("does not read"));
}

TEST_F(Channel, WaitsNoLongerThanItsLimit) {
  const auto start = Clock::now();
  EXPECT_EQ(wait_for_frame(*right_, start + 50ms), std::nullopt);
  EXPECT_GE(Clock::now() - start, 50ms);
  left_->close();
  EXPECT_EQ(wait_for_frame(*right_, Clock::now() + 1h), std::nullopt);
}

TEST(StoreMessage, BytesAndBack) {
  const StoreMessage message{.kind = StoreMessage::Kind::kPost,
                             .rank = 3,
                             .size = -7,
                             .key = "k",
                             .value = std::string("a\0b", 3)};
  const std::string bytes = encode(message);
  const StoreMessage back = decode(bytes);
  EXPECT_EQ(back.kind, message.kind);
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.size, -7);
  EXPECT_EQ(back.key, message.key);
  EXPECT_EQ(back.value, message.value);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(decode(bytes.substr(0, length)), UserError) << length;
  }
  EXPECT_THROW(decode(bytes + "x"), UserError);
}

TEST(StoreMessage, TakesNoUnknownKindAndNothingTooLong) {
  std::string bytes = encode({});
  bytes[0] = 0;
  EXPECT_THROW(decode(bytes), UserError);
  bytes[0] = static_cast<char>(StoreMessage::Kind::kAsk) + 1;
  EXPECT_THROW(decode(bytes), UserError);
  StoreMessage message;
  message.key = std::string(kLongestKey + 1, 'k');
  EXPECT_THROW(decode(encode(message)), UserError);
  message.key.pop_back();
  message.value = std::string(kLongestValue, 'v');
  EXPECT_LE(encode(message).size(), kLongestFrame);
  EXPECT_EQ(decode(encode(message)).value.size(), kLongestValue);
  message.value += 'v';
  EXPECT_THROW(decode(encode(message)), UserError);
}

TEST(StoreMessage, RandomBytesAreAMessageOrAUserError) {
  std::mt19937 random(1);
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = encode({.kind = StoreMessage::Kind::kPost, .rank = 1, .value = "value"});
    for (int flips = static_cast<int>(random() % 4); flips >= 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % 4 == 0 ? random() % bytes.size() : bytes.size());
    try {
      const StoreMessage message = decode(bytes);
      EXPECT_EQ(encode(message), bytes);
      ++taken;
    } catch (const UserError&) {
    }
  }
  EXPECT_GT(taken, 1000);
}

}  // namespace
}  // namespace tenon::distributed
