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
