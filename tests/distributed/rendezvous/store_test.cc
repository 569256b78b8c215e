#include "distributed/rendezvous/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "distributed/communicator.h"
#include "distributed/rendezvous/socket.h"
#include "ranks.h"

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kRepetitions = 10;

class ConcurrentStore : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ConcurrentStore, testing::Values(2, 3, 4, 8));

// Values of changing lengths, so that a mixed-up round or rank shows.
std::string value_of(int rank, int round) {
  return std::string(static_cast<size_t>(round % 7), 'x') + std::to_string(rank * 1000 + round);
}

TEST_P(ConcurrentStore, GathersWhatEveryRankBrings) {
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const auto results = run_ranks(GetParam(), [](Store& store) -> std::string {
      for (int round = 0; round < 30; ++round) {
        const auto all = store.all_gather("values", value_of(store.rank(), round));
        if (all.size() != static_cast<size_t>(store.size())) return "wrong size";
        for (int rank = 0; rank < store.size(); ++rank) {
          if (all[static_cast<size_t>(rank)] != value_of(rank, round)) return "wrong value";
        }
      }
      return "right";
    });
    EXPECT_THAT(results, Each("right"));
  }
}

TEST_P(ConcurrentStore, ABarrierHoldsUntilAllAreThere) {
  std::atomic<int> arrived = 0;
  const auto results = run_ranks(GetParam(), [&](Store& store) -> std::string {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      store.barrier("in");
      if (arrived != round * store.size()) return "went through early";
      store.barrier("out");
    }
    return "right";
  });
  EXPECT_THAT(results, Each("right"));
}

TEST_P(ConcurrentStore, ValuesOfARankReachAllOthers) {
  const auto results = run_ranks(GetParam(), [](Store& store) {
    if (store.rank() == 0) {
      std::this_thread::sleep_for(20ms);  // the others wait for it
      store.set("id", "first");
    }
    std::string got = store.get(0, "id");
    store.barrier("read");
    if (store.rank() == 0) store.set("id", "second");
    store.barrier("replaced");
    got += " " + store.get(0, "id");
    if (store.rank() == 1) store.set("id", "of another rank");
    store.barrier("set by another");
    return got + " " + store.get(0, "id") + " " + store.get(1, "id");
  });
  EXPECT_THAT(results, Each("first second second of another rank"));
}

TEST(Store, ConcurrentCallsOfOneRankDoNotMix) {
  const auto results = run_ranks(3, [](Store& store) -> std::string {
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (const char* name : {"a", "b", "c"}) {
      threads.emplace_back([&, name] {
        for (int round = 0; round < 50; ++round) {
          const auto all = store.all_gather(name, name + std::to_string(round));
          for (const auto& value : all) wrong += value != name + std::to_string(round);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return std::to_string(wrong);
  });
  EXPECT_THAT(results, Each("0"));
}

TEST(Store, ConcurrentRanksExchangeTheLargestValues) {
  const auto results = run_ranks(8, [](Store& store) -> std::string {
    const std::string mine(size_t{1} << 20, static_cast<char>('a' + store.rank()));
    const auto all = store.all_gather("large", mine);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank] != std::string(size_t{1} << 20, static_cast<char>('a' + rank))) return "wrong";
    }
    try {
      store.set("too large", mine + "x");
    } catch (const InternalError& error) {
      return error.what();
    }
    return "taken";
  });
  EXPECT_THAT(results, Each(HasSubstr("values of 1048576 bytes")));
}

TEST(Store, OneRankNeedsNobody) {
  LaunchPlace place;
  const auto store = Store::join(place, seconds(1));
  EXPECT_THAT(store->all_gather("a", "x"), ElementsAre("x"));
  store->barrier("b");
  store->set("k", "v");
  EXPECT_EQ(store->get(0, "k"), "v");
  EXPECT_THROW(store->get(0, "none", 20ms), CollectiveError);
  EXPECT_THROW(store->get(1, "k"), InternalError);
  store->report_failure("enough");
  EXPECT_THAT(store->failure().value_or(""), HasSubstr("enough"));
}

TEST(Store, ConcurrentRanksMayComeLongBeforeRankZero) {
  auto places = places_of(meeting(3));
  std::thread others([&] {
    EXPECT_THAT(run_ranks({places[1], places[2]}, [](Store& store) { return store.process(0); }),
                Each(HasSubstr("pid")));
  });
  std::this_thread::sleep_for(400ms);
  EXPECT_EQ(run_rank(places[0], [](Store&) { return "in"; }), "in");
  others.join();
}

TEST(Store, ConcurrentGroupsLiveAtOnePort) {
  const auto places = places_of(meeting(3, free_ports(1)));
  const auto results = run_ranks(places, [&](Store& first) -> std::string {
    const auto second = Store::join(places[static_cast<size_t>(first.rank())], seconds(20));
    const auto third = Store::join(places[static_cast<size_t>(first.rank())], seconds(20));
    const auto a = first.all_gather("x", "1"), b = third->all_gather("x", "3"),
               c = second->all_gather("x", "2");
    return a[1] + b[2] + c[0];
  });
  EXPECT_THAT(results, Each("132"));
}

TEST(Store, ConcurrentGroupsFollowEachOtherAtOnePort) {
  const auto places = places_of(meeting(3, free_ports(1)));
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const auto results = run_ranks(places, [](Store& store) {
      return store.all_gather("x", std::to_string(store.rank()))[2];
    });
    EXPECT_THAT(results, Each("2"));
  }
}

TEST(Store, ConcurrentRanksMeetByIpv6AndByName) {
  for (const char* host : {"localhost", "::1"}) {
    LaunchPlace place = meeting(2);
    place.host = host;
    if (!listen_at(endpoint(host, 0)).socket) GTEST_SKIP() << "no " << host << " here";
    EXPECT_THAT(
        run_ranks(places_of(place), [](Store& store) { return store.all_gather("x", "v")[1]; }),
        Each("v"));
  }
}

TEST(Store, ConcurrentRanksFindTheNextPortWhereTheFirstIsTaken) {
  const auto ports = free_ports(3);
  // One is another job's store, which is not complete and answers; one says nothing.
  const OpenedSocket silent = listen_at(endpoint("127.0.0.1", ports[1]));
  ASSERT_TRUE(silent.socket);
  LaunchPlace other = meeting(2, {ports[0]});
  other.token = sha256("another job");
  auto others = places_of(other);
  std::thread stranger([&] { EXPECT_EQ(run_rank(others[0], [](Store&) { return "in"; }), "in"); });
  std::this_thread::sleep_for(100ms);
  EXPECT_THAT(run_ranks(places_of(meeting(3, ports)),
                        [](Store& store) { return store.all_gather("x", "v")[1]; }),
              Each("v"));
  EXPECT_EQ(run_rank(others[1], [](Store&) { return "in"; }), "in");
  stranger.join();
}

TEST(Store, ListensAtTheNamedAddressOnly) {
  const auto ports = free_ports(1);
  std::thread rank([&] {
    (void)run_rank(meeting(2, ports), [](Store&) { return ""; },
                   {.deadline = 500ms, .silence = 5s, .on_lost = {}});
  });
  std::this_thread::sleep_for(150ms);
  EXPECT_TRUE(connect_to(endpoint("127.0.0.1", ports[0]), Clock::now() + 1s).socket);
  EXPECT_FALSE(connect_to(endpoint("127.0.0.2", ports[0]), Clock::now() + 1s).socket);
  rank.join();
}

}  // namespace
}  // namespace tenon::distributed
