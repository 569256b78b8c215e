// Connections that are no ranks: they are turned away, and the job begins all the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <random>
#include <thread>

#include "distributed/rendezvous/frame_channel.h"
#include "distributed/rendezvous/greeting.h"
#include "distributed/rendezvous/socket.h"
#include "distributed/rendezvous/store_message.h"
#include "ranks.h"

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

Store::Settings within(std::chrono::milliseconds deadline) {
  return {.deadline = deadline, .silence = 10s, .on_lost = {}};
}

// Rank 0 alone, so that the door is open; the rest joins when the strangers have been.
class ConcurrentStrangers : public testing::Test {
 protected:
  ConcurrentStrangers() : places_(places_of(meeting(3, free_ports(1)))) {
    first_ = std::thread([this] { results_[0] = run_rank(places_[0], gather_, within(15s)); });
  }
  ~ConcurrentStrangers() override {
    if (first_.joinable()) first_.join();
  }

  Socket connect() {
    const Endpoint door = endpoint("127.0.0.1", places_[0].ports[0]);
    for (int attempt = 0; attempt < 300; ++attempt) {
      OpenedSocket opened = connect_to(door, Clock::now() + 2s);
      if (opened.socket) return std::move(opened.socket);
      std::this_thread::sleep_for(10ms);
    }
    ADD_FAILURE() << "nobody listens";
    return {};
  }
  static void send(const Socket& socket, std::string_view bytes) {
    (void)::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // The greeting done right: one who knows the token.
  FrameChannel greeted() {
    FrameChannel channel(connect(), kGreetingBytes);
    const auto challenge = wait_for_frame(channel, Clock::now() + 5s);
    EXPECT_TRUE(challenge);
    const Answer reply = answer(challenge.value_or(""), places_[0].token, places_[0].ports.front());
    channel.push(reply.frame);
    EXPECT_TRUE(wait_for_frame(channel, Clock::now() + 5s));
    channel.sign_frames(client_keys(reply.meeting));
    channel.set_longest(kLongestFrame);
    return channel;
  }
  void expect_that_the_job_begins() {
    const auto start = Clock::now();
    const auto others = run_ranks({places_[1], places_[2]}, gather_, within(10s));
    first_.join();
    EXPECT_THAT(others, Each("012"));
    EXPECT_EQ(results_[0], "012");
    EXPECT_LT(Clock::now() - start, 5s);
  }

  const Work gather_ = [](Store& store) {
    std::string text;
    for (const auto& value : store.all_gather("x", std::to_string(store.rank()))) text += value;
    return text;
  };
  std::vector<LaunchPlace> places_;
  std::array<std::string, 3> results_;
  std::thread first_;
};

TEST_F(ConcurrentStrangers, SayNothing) {
  std::vector<Socket> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(connect());
  expect_that_the_job_begins();
}

TEST_F(ConcurrentStrangers, SendGarbage) {
  std::mt19937 random(3);
  std::vector<Socket> sockets;
  for (const char* text :
       {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "SSH-2.0-x\r\n", "\xff\xff\xff\xff"}) {
    sockets.push_back(connect());
    send(sockets.back(), text);
  }
  for (int i = 0; i < 50; ++i) {
    std::string bytes(random() % 300, ' ');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (bytes.size() > 4 && i % 2 == 0) {  // a length that is taken
      bytes[0] = static_cast<char>(random() % 128);
      bytes[1] = bytes[2] = bytes[3] = 0;
    }
    sockets.push_back(connect());
    send(sockets.back(), bytes);
  }
  expect_that_the_job_begins();
}

TEST_F(ConcurrentStrangers, ComeAndGo) {
  for (int i = 0; i < 200; ++i) (void)connect();
  expect_that_the_job_begins();
}

TEST_F(ConcurrentStrangers, SpeakOneByteAtATime) {
  std::atomic<bool> stop = false;
  std::atomic<int> cut_off = 0;
  std::thread slow([&] {
    std::vector<Socket> sockets;
    for (int i = 0; i < 10; ++i) sockets.push_back(connect());
    const std::string bytes("\x50\0\0\0tenon-meets-", 16);
    for (size_t i = 0; !stop; ++i) {
      for (Socket& socket : sockets) {
        if (!socket) continue;
        const char byte = i < bytes.size() ? bytes[i] : 'x';
        if (::send(socket.fd(), &byte, 1, MSG_NOSIGNAL) < 0) {
          ++cut_off;
          socket.close();
        }
      }
      std::this_thread::sleep_for(100ms);
    }
  });
  // Longer than the time that a greeting may take.
  std::this_thread::sleep_for(2800ms);
  EXPECT_EQ(cut_off, 10);
  expect_that_the_job_begins();
  stop = true;
  slow.join();
}

TEST_F(ConcurrentStrangers, FloodTheDoor) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> floods;
  std::atomic<int> connections = 0;
  const Endpoint door = endpoint("127.0.0.1", places_[0].ports[0]);
  (void)connect();
  for (int i = 0; i < 2; ++i) {
    floods.emplace_back([&] {
      std::vector<Socket> held;
      while (!stop && connections < 10'000) {
        OpenedSocket opened = connect_to(door, Clock::now() + 200ms);
        if (!opened.socket) continue;
        ++connections;
        held.push_back(std::move(opened.socket));
        if (held.size() > 150) held.erase(held.begin(), held.begin() + 50);
      }
    });
  }
  while (connections < 1000) std::this_thread::sleep_for(5ms);
  expect_that_the_job_begins();
  stop = true;
  for (auto& flood : floods) flood.join();
}

TEST_F(ConcurrentStrangers, KnowTheTokenAndSaySomethingElse) {
  std::vector<FrameChannel> channels;
  const std::string join = encode({.kind = StoreMessage::Kind::kJoin, .rank = 1, .size = 3});
  for (const std::string& frame :
       {std::string("garbage"), std::string(), join.substr(1), join + "x",
        encode({.kind = StoreMessage::Kind::kPost, .rank = 1, .key = "k", .value = "v"}),
        encode({.kind = StoreMessage::Kind::kFailed, .rank = 1, .value = "v"})}) {
    channels.push_back(greeted());
    channels.back().push(frame);
    channels.back().flush();
  }
  expect_that_the_job_begins();
}

TEST_F(ConcurrentStrangers, GoBetweenGreetingAndJoining) {
  for (int i = 0; i < 10; ++i) greeted().close();
  expect_that_the_job_begins();
}

TEST_F(ConcurrentStrangers, HaveAnotherToken) {
  LaunchPlace place = places_[1];
  place.token = sha256("another");
  const auto start = Clock::now();
  EXPECT_THAT(run_rank(place, gather_, within(10s)),
              AllOf(HasSubstr("rank 1 has another job token than rank 0"),
                    HasSubstr("collective_token"), HasSubstr("TENON_COLLECTIVE_TOKEN")));
  EXPECT_LT(Clock::now() - start, 3s) << "waiting does not help";
  expect_that_the_job_begins();
}

TEST(Strangers, ConcurrentRankOfAnotherVersionIsToldSo) {
  const auto places = places_of(meeting(2, free_ports(1)));
  OpenedSocket opened = listen_at(endpoint("127.0.0.1", places[0].ports[0]));
  ASSERT_TRUE(opened.socket) << opened.error;
  std::string answered;
  std::thread newer([&] {
    pollfd entry{.fd = opened.socket.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, 10'000) <= 0) return;
    FrameChannel channel(Socket(::accept4(opened.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK)),
                         kGreetingBytes);
    std::string said = challenge(new_nonce());
    said[12] = 9;  // behind the magic
    channel.push(said);
    answered = wait_for_frame(channel, Clock::now() + 5s).value_or("");
  });
  EXPECT_THAT(run_rank(
                  places[1], [](Store&) { return std::string("in"); }, within(10s)),
              AllOf(HasSubstr("rank 1 cannot join rank 0"), HasSubstr("version 9"),
                    HasSubstr("the same version of Tenon")));
  newer.join();
  EXPECT_THAT(answered, HasSubstr("tenon-meets-")) << "it can tell its ranks, too";
}

TEST(Strangers, ConcurrentRanksAreToldOfWrongTokens) {
  auto places = places_of(meeting(3, free_ports(1)));
  places[2].token = sha256("another");
  const auto errors = run_ranks(
      places, [](Store&) { return std::string("in"); }, within(800ms));
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 2 did not join"), HasSubstr("wrong token")));
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 2 did not join"), HasSubstr("wrong token")));
  EXPECT_THAT(errors[2], HasSubstr("another job token"));
}

// A rank that breaks the rules once it is in is a lost rank.
TEST_F(ConcurrentStrangers, AMemberThatSendsGarbageIsLost) {
  FrameChannel channel = greeted();
  channel.push(encode({.kind = StoreMessage::Kind::kJoin, .rank = 1, .size = 3, .value = "me"}));
  channel.push("garbage");
  channel.flush();
  first_.join();
  EXPECT_THAT(results_[0], HasSubstr("rank 1 (me) is lost"));
}

}  // namespace
}  // namespace tenon::distributed
