// What shared memory does besides what all engines between host processes do.
#include "distributed/shared_memory/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <thread>

#include "distributed/shared_memory/call_card.h"
#include "distributed/shared_memory/counter.h"
#include "distributed/shared_memory/segment.h"
#include "tests/distributed/check_collectives.h"
#include "tests/distributed/host_engines.h"
#include "tests/distributed/ranks.h"

namespace tenon::distributed {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

const auto kWell =
    AllOf(Field(&Ended::thrown, ""), Field(&Ended::failed, false), Field(&Ended::signal, 0));

// The n-th word of a segment's address: host, process, file, secret.
std::string with_word(const std::string& address, size_t number, const std::string& word) {
  std::istringstream words(address);
  std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
  all.at(number) = word;
  return all[0] + " " + all[1] + " " + all[2] + " " + all[3];
}

TEST(SharedSegmentTest, TwoWhoOpenItSeeTheSameBytes) {
  SharedSegment made, opened;
  ASSERT_EQ(SharedSegment::make(10'000, made).reason, "");
  ASSERT_EQ(SharedSegment::open(made.address(), 10'000, opened).reason, "");
  ASSERT_NE(made.memory(), opened.memory());
  EXPECT_EQ(std::count(made.memory(), made.memory() + 10'000, 0), 10'000);
  made.memory()[9'999] = 7;
  EXPECT_EQ(opened.memory()[9'999], 7);
}

TEST(SharedSegmentTest, WhatIsNotTheSegmentIsNotOpened) {
  SharedSegment made;
  ASSERT_EQ(SharedSegment::make(10'000, made).reason, "");
  const auto refusal = [&](const std::string& address, size_t bytes = 10'000) {
    SharedSegment opened;
    return SharedSegment::open(address, bytes, opened).reason;
  };
  const std::string address = made.address(), other = "is another process's";
  EXPECT_EQ(refusal(address), "");
  EXPECT_THAT(refusal(""), HasSubstr("no address of shared memory"));
  EXPECT_THAT(refusal("host one two three"), HasSubstr("no address of shared memory"));
  EXPECT_EQ(refusal(with_word(address, 0, "elsewhere")), "it is on another host");
  EXPECT_THAT(refusal(with_word(address, 1, "999999999")), HasSubstr("/proc/999999999/fd/"));
  EXPECT_THAT(refusal(with_word(address, 2, "99999")), HasSubstr("No such file"));
  const int device = open("/dev/null", O_RDWR);
  EXPECT_THAT(refusal(with_word(address, 2, std::to_string(device))), HasSubstr(other));
  close(device);
  EXPECT_THAT(refusal(with_word(address, 3, "00")), HasSubstr(other));
  EXPECT_THAT(refusal(address, 20'000), HasSubstr(other));
}

// Pages that are taken away would end whoever reads them.
TEST(SharedSegmentTest, MemoryThatCouldShrinkIsNotOpened) {
  constexpr size_t kFront = 4096, kBytes = 10'000;
  SharedSegment made;
  ASSERT_EQ(SharedSegment::make(kBytes, made).reason, "");
  for (const unsigned seals : {0, F_SEAL_GROW, F_SEAL_SHRINK}) {
    const int copy = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(ftruncate(copy, kFront + kBytes), 0);
    ASSERT_EQ(pwrite(copy, made.memory() - kFront, kFront, 0), ssize_t(kFront));
    ASSERT_EQ(fcntl(copy, F_ADD_SEALS, seals), 0);
    SharedSegment opened;
    const std::string address = with_word(made.address(), 2, std::to_string(copy));
    const std::string why = SharedSegment::open(address, kBytes, opened).reason;
    EXPECT_EQ(why.find("not sealed") != why.npos, seals != F_SEAL_SHRINK) << seals << ": " << why;
    close(copy);
  }
  const std::filesystem::path file = testing::TempDir() + "not-sealed-" + std::to_string(getpid());
  const int plain = open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  ASSERT_EQ(ftruncate(plain, kFront + kBytes), 0);
  SharedSegment opened;
  EXPECT_THAT(
      SharedSegment::open(with_word(made.address(), 2, std::to_string(plain)), kBytes, opened)
          .reason,
      HasSubstr("not sealed"));
  close(plain);
  std::filesystem::remove(file);
}

TEST(SharedSegmentTest, WhoEnteredIsThereUntilItGoes) {
  SharedSegment made;
  ASSERT_EQ(SharedSegment::make(64, made).reason, "");
  ASSERT_TRUE(made.enter(0));
  EXPECT_FALSE(made.is_there(1));
  {
    SharedSegment opened;
    ASSERT_EQ(SharedSegment::open(made.address(), 64, opened).reason, "");
    ASSERT_TRUE(opened.enter(1));
    EXPECT_TRUE(opened.is_there(0));
    EXPECT_TRUE(made.is_there(1));
    EXPECT_FALSE(made.enter(1)) << "two were the same rank";
  }
  EXPECT_FALSE(made.is_there(1));
}

TEST(SharedCounterTest, WakesWhoSleepsAndGoesRound) {
  SharedCounter counter{};
  EXPECT_TRUE(counter.reached(0));
  EXPECT_FALSE(counter.reached(1));
  EXPECT_FALSE(counter.spin_until(1, microseconds(10)));
  EXPECT_FALSE(counter.sleep_until(1, milliseconds(1)));
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(20));
    counter.set(1);
  });
  const auto begin = std::chrono::steady_clock::now();
  while (!counter.sleep_until(1, milliseconds(30'000))) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  other.join();
  counter.set(0xffffffff);
  EXPECT_TRUE(counter.reached(0xfffffffe));
  EXPECT_FALSE(counter.reached(0));
  counter.set(0);
  EXPECT_TRUE(counter.reached(0xffffffff));
}

TEST(CallCardTest, TellsCallsApartWhoseTextsAreCut) {
  const std::string details(200, 'x');
  const CollectiveCall call{"reduce_scatter", 3, 40, DType::kF16, details + "1"};
  const CallCard card = CallCard::of(call);
  EXPECT_TRUE(card.is_same_call(CallCard::of(call)));
  EXPECT_FALSE(
      card.is_same_call(CallCard::of({"reduce_scatter", 3, 40, DType::kF16, details + "2"})));
  EXPECT_FALSE(card.is_same_call(CallCard::of({"all_gather", 3, 40, DType::kF16, call.detail})));
  EXPECT_THAT(card.call().text(), HasSubstr("reduce_scatter #3 of f16[40] (xxx"));
  const CallCard send = CallCard::of({"send", 1, 8, DType::kF32, "to 1"});
  EXPECT_TRUE(send.is_same_message(CallCard::of({"receive", 1, 8, DType::kF32, "from 0"})));
  EXPECT_FALSE(send.is_same_message(CallCard::of({"receive", 1, 9, DType::kF32, "from 0"})));
}

// One rank is given an address where there is nothing: no rank has the segment then.
TEST(SharedMemoryTest, WhereOneRankCannotOpenItAllAgree) {
  for (const int blind : {1, 2}) {
    const TemporaryFolder folder;
    const auto ended = run_processes(3, [&](int rank) {
      KeyValues store = file_store(folder.path(), rank);
      store.get = [=, get = store.get](int of, const std::string& key, milliseconds deadline) {
        const std::string value = get(of, key, deadline);
        const bool is_address = key.find("segment") != std::string::npos;
        return is_address && rank == blind ? with_word(value, 2, "99999") : value;
      };
      const SharedMemoryRanks made = make_shared_memory(rank, 3, store);
      EXPECT_EQ(made.communicator, nullptr);
      EXPECT_THAT(made.why, AllOf(HasSubstr("rank " + std::to_string(blind) + " cannot open"),
                                  HasSubstr("No such file")));
    });
    EXPECT_THAT(ended, Each(kWell));
  }
}

// No rank has a core of its own here.
TEST(SharedMemoryTest, MoreRanksThanCores) {
  const int ranks = 2 * static_cast<int>(std::max(1U, std::thread::hardware_concurrency())) + 1;
  const auto ended = run_engine(kSharedMemory, std::min(ranks, 9), std::chrono::seconds(60),
                                [](Communicator& all) {
                                  for (uint64_t round = 0; round < 10; ++round) {
                                    check_collectives(all, DType::kF32, 1001, round);
                                  }
                                });
  EXPECT_THAT(ended, Each(kWell));
}

// Sessions on threads: each opens what the process has already, and leaves by itself.
TEST(SharedMemoryTest, RanksMayBeThreads) {
  const TemporaryFolder folder;
  Communicators ranks(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ranks[rank] =
          make_shared_memory(rank, 3, file_store(folder.path(), rank), {milliseconds(5'000)})
              .communicator;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& rank : ranks) ASSERT_NE(rank, nullptr);
  EXPECT_THAT(
      run_ranks(ranks, [](Communicator& all) { check_collectives(all, DType::kF16, 99, 1); }),
      Each(""));
  ranks[1].reset();
  EXPECT_THAT(thrown_by([&] { ranks[0]->barrier(nullptr); }),
              HasSubstr("rank 1 is gone: the communicator was destroyed"));
}

// A child that was forked is no rank: the others do not hear of its end.
TEST(SharedMemoryTest, AForkedCopyLeavesNothingBehind) {
  const auto ended =
      run_engine(kSharedMemory, 2, std::chrono::seconds(60), [](Communicator& ranks) {
        const int child = fork();
        if (child == 0) {
          delete &ranks;
          _exit(0);
        }
        (void)waitpid(child, nullptr, 0);
        ranks.barrier(nullptr);
      });
  EXPECT_THAT(ended, Each(kWell));
}

TEST(SharedMemoryTest, NothingIsLeftWhenAllAreKilled) {
  const auto shared_files = [] {
    std::vector<std::string> names;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
      const std::string name = entry.path().filename();
      if (name.find("tenon") != std::string::npos) names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  };
  const auto before = shared_files();
  const auto ended = run_engine(kSharedMemory, 3, milliseconds(5'000), [](Communicator& ranks) {
    ranks.barrier(nullptr);
    raise(SIGKILL);
  });
  EXPECT_THAT(ended, Each(Field(&Ended::signal, SIGKILL)));
  EXPECT_EQ(shared_files(), before);
}

TEST(SharedMemoryTest, WrongArgumentsAreRefused) {
  const TemporaryFolder folder;
  const auto refusal = [&](int rank, int size, milliseconds deadline) {
    return thrown_by(
        [&] { (void)make_shared_memory(rank, size, file_store(folder.path(), rank), {deadline}); });
  };
  EXPECT_THAT(refusal(2, 2, milliseconds(9)), HasSubstr("rank 2 is none of 2 ranks"));
  EXPECT_THAT(refusal(-1, 2, milliseconds(9)), HasSubstr("rank -1 is none of 2 ranks"));
  EXPECT_THAT(refusal(0, -3, milliseconds(9)), HasSubstr("-3 ranks were asked for"));
  EXPECT_THAT(refusal(0, 1, milliseconds(0)), HasSubstr("must be positive"));
}

}  // namespace
}  // namespace tenon::distributed
