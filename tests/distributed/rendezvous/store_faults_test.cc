// What goes wrong between ranks that are threads; process_test.cc has those that die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "distributed/communicator.h"
#include "distributed/rendezvous/socket.h"
#include "ranks.h"

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int kRepetitions = 10;

Store::Settings within(std::chrono::milliseconds deadline) {
  return {.deadline = deadline, .silence = 10s, .on_lost = {}};
}

std::string nothing(Store&) { return "in"; }

class Stopwatch {
 public:
  Clock::duration elapsed() const { return Clock::now() - start_; }

 private:
  const Clock::time_point start_ = Clock::now();
};

TEST(StoreFaults, ConcurrentJoinNamesTheRankThatDoesNotCome) {
  auto places = places_of(meeting(4));
  places.erase(places.begin() + 2);
  const Stopwatch watch;
  const auto errors = run_ranks(places, nothing, within(600ms));
  EXPECT_LT(watch.elapsed(), 3s);
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("rank 2 did not join within 600 ms"),
                         HasSubstr("rank 0 listens at 127.0.0.1:"), Not(HasSubstr("rank 3 did")))));
}

TEST(StoreFaults, ConcurrentJoinNamesRankZeroWhereItDoesNotCome) {
  auto places = places_of(meeting(3, free_ports(1)));
  places.erase(places.begin());
  const auto errors = run_ranks(places, nothing, within(400ms));
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0 did not let rank"), HasSubstr("within 400 ms"),
                                 HasSubstr("refused"))));
}

TEST(StoreFaults, ConcurrentBarrierNamesWhoDoesNotArriveOnAllRanks) {
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    std::atomic<int> done = 0;
    const auto errors = run_ranks(4, [&](Store& store) -> std::string {
      if (store.rank() == 3 || store.rank() == 1) {
        while (done < 2) std::this_thread::sleep_for(5ms);
        return store.failure().value_or("none");
      }
      std::string error = "none";
      try {
        store.barrier("start", 150ms);
      } catch (const CollectiveError& caught) {
        error = caught.what();
      }
      ++done;
      return error;
    });
    EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 (pid"), HasSubstr("and rank 3 (pid"),
                                 HasSubstr("did not arrive at 'start' within 150 ms")));
    EXPECT_THAT(errors[2], AllOf(HasSubstr("rank 1 (pid"), HasSubstr("and rank 3 (pid")));
  }
}

TEST(StoreFaults, ConcurrentRanksThatComeTooLateHearWhy) {
  const auto errors = run_ranks(3, [](Store& store) -> std::string {
    if (store.rank() == 2) {
      std::this_thread::sleep_for(400ms);
      store.barrier("start", 5s);
      return "went through";
    }
    store.barrier("start", 100ms);
    return "went through";
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("rank 2 (pid"), HasSubstr("did not arrive at 'start'"))));
}

TEST(StoreFaults, ConcurrentGetNamesWhoDidNotSetAndTheGroupGoesOn) {
  const auto errors = run_ranks(2, [](Store& store) -> std::string {
    std::string error = "none";
    try {
      (void)store.get(1 - store.rank(), "id", 60ms);
    } catch (const CollectiveError& caught) {
      error = caught.what();
    }
    store.barrier("after");
    return error;
  });
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("rank 1 (pid"), HasSubstr("did not set 'id' within 60 ms")));
  EXPECT_THAT(errors[1], HasSubstr("rank 0 (pid"));
}

TEST(StoreFaults, ConcurrentFailureReachesAllOthersOnce) {
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const auto places = places_of(meeting(4));
    std::vector<std::string> results(4), heard(4);
    std::atomic<int> calls = 0;
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        auto settings = seconds(20);
        settings.on_lost = [&, rank](int lost, const std::string& reason) {
          ++calls;
          heard[rank] = std::to_string(lost) + " " + reason;
        };
        results[rank] = run_rank(
            places[rank],
            [](Store& store) -> std::string {
              if (store.rank() == 1) {
                store.report_failure("no memory");
                store.report_failure("said twice");
              }
              store.barrier("start");
              return "went through";
            },
            settings);
      });
    }
    const Stopwatch watch;
    for (auto& thread : threads) thread.join();
    EXPECT_LT(watch.elapsed(), 5s);
    EXPECT_THAT(results, Each(AllOf(HasSubstr("rank 1 (pid"), HasSubstr("failed: no memory"))));
    for (const int rank : {0, 2, 3}) {
      EXPECT_THAT(heard[static_cast<size_t>(rank)],
                  AllOf(testing::StartsWith("1 rank 1 (pid"), HasSubstr("no memory")));
    }
    EXPECT_EQ(calls, 3) << "who reported it knows";
  }
}

TEST(StoreFaults, ConcurrentWaitsForOneWhoLeftEndAtOnce) {
  for (const int leaver : {0, 2}) {
    const Stopwatch watch;
    const auto errors = run_ranks(3, [&](Store& store) -> std::string {
      store.set("id", "v");
      if (store.rank() == leaver) return "left";
      const std::string kept = store.get(leaver, "id");  // who has a value keeps it
      try {
        store.barrier("start");
      } catch (const CollectiveError& error) {
        return kept + " " + error.what();
      }
      return "went through";
    });
    EXPECT_LT(watch.elapsed(), 5s);
    const std::string name = "rank " + std::to_string(leaver);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == leaver) continue;
      EXPECT_THAT(errors[static_cast<size_t>(rank)],
                  AllOf(HasSubstr(name), HasSubstr("left and did not arrive at 'start'")));
    }
  }
}

TEST(StoreFaults, ConcurrentLeavingIsNoLoss) {
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    std::atomic<int> losses = 0;
    auto settings = seconds(20);
    settings.on_lost = [&](int, const std::string&) { ++losses; };
    const auto results = run_ranks(
        places_of(meeting(4)),
        [](Store& store) {
          store.barrier("end");
          return std::string("done");
        },
        settings);
    EXPECT_THAT(results, Each("done"));
    EXPECT_EQ(losses, 0);
  }
}

TEST(StoreFaults, ConcurrentRanksOfAnotherSizeFailAll) {
  auto places = places_of(meeting(3));
  places[2].size = 4;
  const Stopwatch watch;
  const auto errors = run_ranks(places, nothing);
  EXPECT_LT(watch.elapsed(), 5s);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 2 (pid"), HasSubstr("one of 4 ranks"),
                                 HasSubstr("rank 0 as one of 3"))));
}

TEST(StoreFaults, ConcurrentRanksBeyondTheSizeFailAll) {
  auto places = places_of(meeting(2));
  places[1].rank = 5;
  places[1].size = 6;
  EXPECT_THAT(run_ranks(places, nothing), Each(HasSubstr("rank 5 (pid")));
}

TEST(StoreFaults, ConcurrentRanksWithOneNumberFailAll) {
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    auto places = places_of(meeting(4));
    places[3].rank = 1;
    const Stopwatch watch;
    const auto errors = run_ranks(places, nothing);
    EXPECT_LT(watch.elapsed(), 5s);
    EXPECT_THAT(errors, Each(HasSubstr("two processes were started as rank 1: pid")));
  }
}

TEST(StoreFaults, ConcurrentSecondRankZeroFindsThePortTaken) {
  const auto places = places_of(meeting(2, free_ports(1)));
  std::thread first([&] { EXPECT_EQ(run_rank(places[0], nothing), "in"); });
  std::this_thread::sleep_for(100ms);
  EXPECT_THAT(run_rank(places[0], nothing, within(200ms)),
              AllOf(HasSubstr("rank 0 cannot listen"), HasSubstr("in use")));
  EXPECT_EQ(run_rank(places[1], nothing), "in");
  first.join();
}

TEST(StoreFaults, APortThatIsTakenIsNamed) {
  const auto ports = free_ports(1);
  const OpenedSocket taken = listen_at(endpoint("127.0.0.1", ports[0]));
  ASSERT_TRUE(taken.socket);
  const Stopwatch watch;
  try {
    (void)Store::join(meeting(2, ports), within(200ms));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(ports[0])),
                                    HasSubstr("in use"), HasSubstr("collective_address")));
  }
  EXPECT_LT(watch.elapsed(), 2s);
}

TEST(StoreFaults, AnAddressOfAnotherHostIsNamed) {
  LaunchPlace place = meeting(2);
  place.host = "192.0.2.1";  // for documents (RFC 5737): nobody has it
  const Stopwatch watch;
  EXPECT_THAT(run_rank(place, nothing), AllOf(HasSubstr("192.0.2.1"), HasSubstr("cannot listen")));
  EXPECT_LT(watch.elapsed(), 2s) << "waiting does not help";
  place.host = "no such host";
  EXPECT_THAT(run_rank(place, nothing), HasSubstr("no such host"));
  place.rank = 1;  // its name may come up together with rank 0
  EXPECT_THAT(run_rank(place, nothing, within(300ms)),
              AllOf(HasSubstr("rank 0 did not let rank 1 in"), HasSubstr("no such host")));
}

TEST(StoreFaults, ConcurrentGroupCanBeMadeAnewAfterAFailure) {
  const auto places = places_of(meeting(3, free_ports(1)));
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const auto errors = run_ranks(places, [](Store& store) -> std::string {
      if (store.rank() == 1) store.report_failure("of the first");
      store.barrier("start");
      return "went through";
    });
    EXPECT_THAT(errors, Each(HasSubstr("of the first")));
    EXPECT_THAT(run_ranks(places, [](Store& store) { return store.all_gather("x", "v")[1]; }),
                Each("v"));
  }
}

TEST(StoreFaults, ConcurrentCallbackThatThrowsDisturbsNobody) {
  auto settings = seconds(20);
  settings.on_lost = [](int, const std::string&) { throw std::runtime_error("from the callback"); };
  const auto errors = run_ranks(
      places_of(meeting(2)),
      [](Store& store) -> std::string {
        if (store.rank() == 1) store.report_failure("reason");
        store.barrier("start");
        return "went through";
      },
      settings);
  EXPECT_THAT(errors, Each(HasSubstr("reason")));
}

}  // namespace
}  // namespace tenon::distributed
