// What ranks say of their Runs, and what all hear when one of them fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "distributed/communicator.h"
#include "distributed/rendezvous/announcements.h"
#include "distributed/rendezvous/fingerprint.h"
#include "ranks.h"

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

Fingerprint shapes(const std::string& text) { return {{{"shapes of inputs", text}}}; }
std::string word(const std::string& text) { return encode(shapes(text)); }

TEST(Announcements, AgreeWhateverTheOrderOfRanksAndRuns) {
  Announcements announced(3);
  for (const int rank : {2, 0, 1}) {
    EXPECT_EQ(announced.take(rank, "Run 1", word("ids [1,7]")), "");
    EXPECT_EQ(announced.take(rank, "Run 2", word("ids [1,1]")), "");
  }
  // The occasion is over: what comes under its name again is another one.
  EXPECT_EQ(announced.take(1, "Run 1", word("ids [1,9]")), "");
}

TEST(Announcements, NameTheRanksAndBothShapes) {
  for (const int odd : {0, 1, 2}) {
    Announcements announced(4);
    std::string said;
    for (const int rank : {1, 0, 2}) {
      said += announced.take(rank, "Run 3 of tenon_0", word(rank == odd ? "ids [2,7]" : "ids [1]"));
      if (!said.empty()) break;
    }
    EXPECT_THAT(said, AllOf(StartsWith("at Run 3 of tenon_0, the ranks differ in the shapes"),
                            HasSubstr("ids [2,7] on rank " + std::to_string(odd)),
                            HasSubstr("ids [1] on rank")));
  }
}

TEST(Announcements, ARankThatRunsAheadForEverIsNotKept) {
  Announcements announced(2);
  for (int run = 0; run < 5000; ++run) {
    EXPECT_EQ(announced.take(0, std::to_string(run), word("a")), "");
  }
  EXPECT_EQ(announced.take(1, "0", word("b")), "");  // forgotten
  EXPECT_NE(announced.take(1, "4999", word("b")), "");
}

TEST(Announcements, WhatIsNoFingerprintIsRefused) {
  Announcements announced(2);
  EXPECT_EQ(announced.take(0, "Run 1", "\x05"), "");
  EXPECT_THROW(announced.take(1, "Run 1", word("a")), UserError);
}

std::string verdict_of(Store& store) { return store.verdict(5s).value_or("none"); }

TEST(StoreAnnouncements, OtherShapesFailTheGroupOnAllRanks) {
  const auto said = run_ranks(3, [](Store& store) {
    for (int run = 0; run < 20; ++run) {
      store.announce("Run " + std::to_string(run), shapes("ids [1,7]"));
    }
    store.announce("Run 20", shapes(store.rank() == 1 ? "ids [1,8]" : "ids [1,7]"));
    const std::string verdict = verdict_of(store);
    EXPECT_THROW(store.announce("Run 21", shapes("ids [1,7]")), CollectiveError);
    return verdict;
  });
  EXPECT_THAT(said, Each(AllOf(HasSubstr("at Run 20, the ranks differ in the shapes of inputs"),
                               HasSubstr("ids [1,8] on rank 1"), HasSubstr("ids [1,7] on rank"))));
}

Store::Settings with_progress(const std::string& progress) {
  Store::Settings settings = seconds(20);
  settings.progress = [progress] { return progress; };
  return settings;
}

TEST(StoreAnnouncements, AFailureComesWithHowFarAllRanksAre) {
  const auto places = places_of(meeting(3));
  std::vector<std::string> said(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto settings = with_progress("is in call #" + std::to_string(rank));
      said[rank] = run_rank(
          places[rank],
          [](Store& store) {
            store.barrier("all are in");
            if (store.rank() == 2) store.report_failure("no memory");
            return verdict_of(store);
          },
          settings);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(said, Each(AllOf(HasSubstr("failed: no memory (rank 0 is in call #0; rank 1 is in "
                                         "call #1; rank 2 is in call #2)"),
                               StartsWith("rank 2 (pid"))));
}

TEST(StoreAnnouncements, WhatAGoneRankSaidLastIsStillKnown) {
  const auto places = places_of(meeting(2));
  std::vector<std::string> said(2);
  std::thread other([&] {
    said[1] = run_rank(
        places[1],
        [](Store& store) {
          store.barrier("all are in");
          std::this_thread::sleep_for(600ms);  // a beat
          return std::string("left");
        },
        with_progress("is in call #1"));
  });
  said[0] = run_rank(
      places[0],
      [](Store& store) {
        store.barrier("all are in");
        std::this_thread::sleep_for(700ms);
        store.report_failure("rank 1 is missing");
        return verdict_of(store);
      },
      with_progress("is in call #7"));
  other.join();
  EXPECT_THAT(said[0], HasSubstr("failed: rank 1 is missing (rank 0 is in call #7; rank 1, when it "
                                 "was last heard of, is in call #1)"));
}

}  // namespace
}  // namespace tenon::distributed
