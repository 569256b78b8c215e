// Ranks that die, hang or do not come at all, as processes of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "distributed/communicator.h"
#include "distributed/rendezvous/socket.h"
#include "processes.h"
#include "ranks.h"

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kRepetitions = 10;
constexpr int kSize = 4;

using Body = std::function<void(Store&, const Processes::Say&)>;

Store::Settings settings(std::chrono::milliseconds deadline, std::chrono::milliseconds silence) {
  return {.deadline = deadline, .silence = silence, .on_lost = {}};
}

void start_rank(Processes& processes, LaunchPlace place, int rank, const Store::Settings& settings,
                const Body& body) {
  place.rank = rank;
  processes.start([=](const Processes::Say& say) {
    const std::unique_ptr<Store> store = Store::join(place, settings);
    say("joined");
    body(*store, say);
  });
}

void start_all(Processes& processes, const Store::Settings& settings, const Body& body) {
  const LaunchPlace place = meeting(kSize);
  for (int rank = 0; rank < kSize; ++rank) start_rank(processes, place, rank, settings, body);
  for (size_t rank = 0; rank < kSize; ++rank) EXPECT_EQ(processes.line(rank), "joined");
}

// "<milliseconds of the machine's clock> <text>": clocks of processes of one host agree.
std::string stamped(const std::string& text) {
  const auto now =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch());
  return std::to_string(now.count()) + " " + text;
}

void wait_in_barrier(Store& store, const Processes::Say& say) {
  try {
    store.barrier("never complete");
    say(stamped("went through"));
  } catch (const CollectiveError& error) {
    say(stamped(error.what()));
  }
}

// What each of the others says, and that it said it within `limit` of `since`.
void expect_of_others(Processes& processes, size_t lost, Clock::time_point since,
                      std::chrono::milliseconds limit,
                      const testing::Matcher<const std::string&>& what) {
  for (size_t rank = 0; rank < kSize; ++rank) {
    if (rank == lost) continue;
    const std::string line = processes.line(rank);
    const Clock::time_point said{std::chrono::milliseconds(std::atoll(line.c_str()))};
    EXPECT_LT(said - since, limit) << "rank " << rank;
    EXPECT_THAT(line, what) << "rank " << rank;
  }
}

class RendezvousProcesses : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RendezvousProcesses, testing::Values(0, 2));

TEST_P(RendezvousProcesses, AKilledRankIsKnownWithinASecond) {
  const auto lost = static_cast<size_t>(GetParam());
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    Processes processes;
    start_all(processes, settings(20s, 20s), [&](Store& store, const Processes::Say& say) {
      if (store.rank() == GetParam()) ::pause();
      wait_in_barrier(store, say);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * repetition));
    const auto killed = Clock::now();
    processes.signal(lost, SIGKILL);
    expect_of_others(processes, lost, killed, 1s,
                     AllOf(HasSubstr("rank " + std::to_string(lost) + " (pid " +
                                     std::to_string(processes.pid(lost))),
                           HasSubstr("is lost: ")));
  }
}

TEST_P(RendezvousProcesses, AKilledRankIsToldToWhoDoesNotWait) {
  const auto lost = static_cast<size_t>(GetParam());
  const LaunchPlace place = meeting(kSize);
  Processes processes;
  for (int rank = 0; rank < kSize; ++rank) {
    processes.start([place, rank](const Processes::Say& say) {
      LaunchPlace mine = place;
      mine.rank = rank;
      Store::Settings heard = settings(20s, 20s);
      heard.on_lost = [&say](int who, const std::string& reason) {
        say(stamped("lost " + std::to_string(who) + ": " + reason));
      };
      const auto store = Store::join(mine, heard);
      say("joined");
      ::pause();
    });
  }
  for (size_t rank = 0; rank < kSize; ++rank) EXPECT_EQ(processes.line(rank), "joined");
  const auto killed = Clock::now();
  processes.signal(lost, SIGKILL);
  expect_of_others(processes, lost, killed, 1s,
                   HasSubstr(" lost " + std::to_string(lost) + ": rank " + std::to_string(lost)));
}

TEST_P(RendezvousProcesses, ARankThatExitsWithoutAWordIsLost) {
  Processes processes;
  start_all(processes, settings(20s, 20s), [&](Store& store, const Processes::Say& say) {
    store.barrier("all say that they have joined");
    if (store.rank() == GetParam()) {
      std::this_thread::sleep_for(50ms);
      ::_exit(1);
    }
    wait_in_barrier(store, say);
  });
  expect_of_others(processes, static_cast<size_t>(GetParam()), Clock::now(), 5s,
                   AllOf(HasSubstr("rank " + std::to_string(GetParam())), HasSubstr("is lost")));
}

TEST_P(RendezvousProcesses, AStoppedRankIsLostAfterItsSilence) {
  const auto lost = static_cast<size_t>(GetParam());
  Processes processes;
  sigset_t go_on;
  ::sigemptyset(&go_on);
  ::sigaddset(&go_on, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &go_on, nullptr);
  start_all(processes, settings(20s, 700ms), [&](Store& store, const Processes::Say& say) {
    if (store.rank() == GetParam()) {
      int number = 0;
      ::sigwait(&go_on, &number);
      // All others have come to the first; of the second it must hear that they have gone.
      try {
        store.barrier("never complete");
      } catch (const CollectiveError&) {
      }
    }
    wait_in_barrier(store, say);
  });
  const auto stopped = Clock::now();
  processes.signal(lost, SIGSTOP);
  expect_of_others(processes, lost, stopped, 2500ms,
                   AllOf(HasSubstr("rank " + std::to_string(lost) + " (pid"),
                         HasSubstr("nothing was heard of it for 700 ms")));
  // It goes on, and knows that the others have not waited.
  processes.signal(lost, SIGUSR1);
  processes.signal(lost, SIGCONT);
  const std::string line = processes.line(lost);
  EXPECT_THAT(line, testing::Not(HasSubstr("went through")));
  EXPECT_THAT(line, HasSubstr("lost"));
}

TEST_P(RendezvousProcesses, AStoppedRankIsNamedAtTheDeadlineOfAWait) {
  const auto lost = static_cast<size_t>(GetParam());
  Processes processes;
  start_all(processes, settings(20s, 30s), [&](Store& store, const Processes::Say& say) {
    if (store.rank() == GetParam()) ::pause();
    try {
      store.barrier("step", 1500ms);
      say("went through");
    } catch (const CollectiveError& error) {
      say(stamped(error.what()));
    }
  });
  const auto stopped = Clock::now();
  processes.signal(lost, SIGSTOP);
  const std::string rank = "rank " + std::to_string(lost) + " (pid";
  expect_of_others(processes, lost, stopped, 3s,
                   AllOf(HasSubstr(rank), HasSubstr("within 1500 ms"),
                         HasSubstr(lost == 0 ? "has not been heard of" : "did not arrive")));
}

TEST(RendezvousProcesses, AShortStopIsForgiven) {
  Processes processes;
  start_all(processes, settings(20s, 3s), [](Store& store, const Processes::Say& say) {
    for (int round = 0; round < 200; ++round) {
      store.barrier("step");
      std::this_thread::sleep_for(2ms);
    }
    say("done");
    store.barrier("end");
    ::pause();
  });
  for (const size_t rank : {0, 1, 3}) {
    processes.signal(rank, SIGSTOP);
    std::this_thread::sleep_for(300ms);
    processes.signal(rank, SIGCONT);
  }
  for (size_t rank = 0; rank < kSize; ++rank) EXPECT_EQ(processes.line(rank), "done");
}

TEST(RendezvousProcesses, ARankThatExitsBeforeItJoinsIsNamed) {
  const LaunchPlace place = meeting(3);
  Processes processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.start([place, rank](const Processes::Say& say) {
      if (rank == 2) ::_exit(3);
      LaunchPlace mine = place;
      mine.rank = rank;
      say(run_rank(
          mine, [](Store&) { return "in"; }, settings(700ms, 5s)));
    });
  }
  for (const size_t rank : {0, 1}) {
    EXPECT_THAT(processes.line(rank), HasSubstr("rank 2 did not join within 700 ms"));
  }
}

TEST(RendezvousProcesses, ARankThatDiesWhileOthersJoinFailsThem) {
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const LaunchPlace place = meeting(3);
    Processes processes;
    for (int rank = 0; rank < 2; ++rank) {
      processes.start([place, rank](const Processes::Say& say) {
        LaunchPlace mine = place;
        mine.rank = rank;
        if (rank == 1) {
          std::thread([] {
            std::this_thread::sleep_for(150ms);
            ::kill(::getpid(), SIGKILL);
          }).detach();
        }
        say(run_rank(
            mine, [](Store&) { return "in"; }, settings(10s, 5s)));
      });
    }
    EXPECT_THAT(processes.line(0), AllOf(HasSubstr("rank 1 (pid"), HasSubstr("is lost")));
  }
}

TEST(RendezvousProcesses, AGroupMeetsAgainAtThePortOfAKilledOne) {
  const LaunchPlace place = meeting(2, free_ports(1));
  for (int repetition = 0; repetition < 3; ++repetition) {
    Processes processes;
    for (int rank = 0; rank < 2; ++rank) {
      start_rank(processes, place, rank, settings(20s, 20s),
                 [](Store&, const Processes::Say&) { ::pause(); });
    }
    for (const size_t rank : {0, 1}) EXPECT_EQ(processes.line(rank), "joined");
    processes.signal(0, SIGKILL);
    processes.signal(1, SIGKILL);
  }
}

TEST(RendezvousProcesses, AForkedCopyIsNotTheRank) {
  Processes processes;
  const LaunchPlace place = meeting(2);
  for (int rank = 0; rank < 2; ++rank) {
    LaunchPlace mine = place;
    mine.rank = rank;
    processes.start([mine](const Processes::Say& say) {
      std::unique_ptr<Store> store = Store::join(mine, settings(20s, 20s));
      const pid_t copy = ::fork();
      if (copy == 0) {
        try {
          store->barrier("x");
        } catch (const CollectiveError& error) {
          say(error.what());
        }
        store.reset();  // neither hangs nor leaves for the parent
        ::_exit(0);
      }
      int status = -1;
      ::waitpid(copy, &status, 0);
      store->barrier("after");
      say("status " + std::to_string(status));
    });
  }
  for (const size_t rank : {0, 1}) {
    EXPECT_THAT(processes.line(rank), HasSubstr("was forked from rank " + std::to_string(rank)));
    EXPECT_EQ(processes.line(rank), "status 0");
  }
}

}  // namespace
}  // namespace tenon::distributed
