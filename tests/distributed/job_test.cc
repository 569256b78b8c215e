// Ranks with GPUs from their launch to their collectives: threads, the stub's NCCL, host memory.
#include "distributed/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "distributed/connect_ranks.h"
#include "distributed/planned_job.h"
#include "tests/distributed/nccl_ranks.h"

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

struct Rank {
  std::shared_ptr<Job> job;
  std::string thrown;
};

class JobTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("TENON_NCCL_LIBRARY", TENON_STUB_NCCL, 1);
    // Ranks of one host keep a secret there; nothing is left in the user's folders.
    std::string folder = testing::TempDir() + "job-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(std::getenv("XDG_RUNTIME_DIR")); }
  void SetUp() override { stub_ = stub_nccl(); }

  // One thread for each; devices by rank.
  std::vector<Rank> join(const std::vector<std::shared_ptr<RankDevice>>& devices,
                         std::chrono::milliseconds deadline = 20s) {
    const uint16_t port = static_cast<uint16_t>(20000 + (::getpid() * 7 + ++jobs_ * 131) % 20000);
    std::vector<Rank> ranks(devices.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < devices.size(); ++i) {
      threads.emplace_back([&, i] {
        JobOptions options;
        options.deadline = deadline;
        options.orders_graphs = orders_graphs_;
        options.launch.rank = static_cast<int>(i);
        options.launch.size = static_cast<int>(devices.size());
        options.launch.address = fmt::format("127.0.0.1:{}", port);
        ranks[i].thrown = thrown_by([&] { ranks[i].job = Job::join(options, {}, devices[i]); });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return ranks;
  }

  static std::vector<std::shared_ptr<RankDevice>> devices(int count) {
    std::vector<std::shared_ptr<RankDevice>> made;
    for (int i = 0; i < count; ++i) made.push_back(host_device(9, fmt::format("0000:0{}:00.0", i)));
    return made;
  }
  static std::vector<std::string> words(const std::vector<Rank>& ranks) {
    std::vector<std::string> thrown;
    for (const Rank& rank : ranks) thrown.push_back(rank.thrown);
    return thrown;
  }

  StubNccl stub_;
  bool orders_graphs_ = false;
  static inline std::atomic<int> jobs_ = 0;
};

TEST_F(JobTest, RanksWithGpusSumThroughNccl) {
  for (const int size : {2, 3}) {
    const std::vector<Rank> ranks = join(devices(size));
    ASSERT_THAT(words(ranks), Each(""));
    const ir::Collective sum{.op = std::string(ir::kAllReduce), .reduction = "sum"};
    std::vector<float> got(size, 0);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const Job& job = *ranks[rank].job;
        EXPECT_EQ(job.rank(), rank);
        EXPECT_EQ(job.size(), size);
        EXPECT_THAT(job.engine(), HasSubstr("nccl"));
        float mine = static_cast<float>(rank + 1);
        void* const buffers[] = {&mine, &got[rank]};
        const int64_t numbers[] = {1, 1};
        job.collectives()->make_call(sum, DType::kF32)->enqueue(nullptr, buffers, numbers);
        job.require_alive();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(got, Each(static_cast<float>(size * (size + 1) / 2)));
  }
}

TEST_F(JobTest, TwoRanksOnOneGpuAreRefused) {
  auto shared = devices(3);
  shared[2] = host_device(9, "0000:00:00.0");
  EXPECT_THAT(words(join(shared)),
              Each(AllOf(HasSubstr("ranks 0 and 2 have the same GPU, 0000:00:00.0"),
                         HasSubstr("CUDA_VISIBLE_DEVICES"))));
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  EXPECT_THAT(words(join(shared)), Each(""));
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

TEST_F(JobTest, GpusOfDifferentKindsAreRefused) {
  const auto thrown = words(join({host_device(9, "a"), host_device(10, "b")}));
  EXPECT_THAT(thrown, Each(AllOf(HasSubstr("architecture of the GPU"), HasSubstr("sm_90"),
                                 HasSubstr("sm_100"))));
}

// A Run of rank 0 that does not end fails the job everywhere, and soon.
TEST_F(JobTest, ARunThatDoesNotEndFailsAllRanks) {
  for (int round = 0; round < 3; ++round) {
    const std::vector<Rank> ranks = join(devices(2), 2s);
    ASSERT_THAT(words(ranks), Each(""));
    ranks[1].job->watch([] { return true; });
    ranks[0].job->require_alive();
    ranks[0].job->watch([] { return false; });
    for (const Rank& rank : ranks) {
      std::string thrown;
      for (int i = 0; i < 1000 && thrown.empty(); ++i) {
        std::this_thread::sleep_for(10ms);
        thrown = thrown_by([&] { rank.job->require_alive(); });
      }
      EXPECT_THAT(thrown, AllOf(HasSubstr("rank 0"), HasSubstr("not done within 2 s")));
    }
  }
}

// What each rank got, and why not.
struct Memory {
  std::vector<std::shared_ptr<void>> got;
  std::vector<std::string> why;
  explicit Memory(size_t ranks) : got(ranks), why(ranks) {}
};
Memory make_memory(const std::vector<Rank>& ranks, const std::vector<std::string>& layouts) {
  Memory memory(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      Job& job = *ranks[i].job;
      EXPECT_EQ(thrown_by([&] {
                  if (!job.agree_on_memory("tenon_0", layouts[i])) return;
                  memory.got[i] = job.make_memory("tenon_0", 8192);
                }),
                "");
      memory.why[i] = job.why_no_memory();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return memory;
}

void sum_on(const std::vector<Rank>& ranks) {
  const ir::Collective sum{.op = std::string(ir::kAllReduce), .reduction = "sum"};
  std::vector<std::thread> threads;
  for (const Rank& rank : ranks) {
    threads.emplace_back([&] {
      float value = 1, out = 0;
      void* const buffers[] = {&value, &out};
      const int64_t numbers[] = {1, 1};
      rank.job->collectives()->make_call(sum, DType::kF32)->enqueue(nullptr, buffers, numbers);
      EXPECT_EQ(out, ranks.size());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Who orders graphs itself has a communicator that does not, from NCCL 2.29 on.
TEST_F(JobTest, GraphsMixUnlessTheCallerOrdersThem) {
  for (const bool orders : {false, true}) {
    orders_graphs_ = orders;
    const std::vector<Rank> ranks = join(devices(2));
    ASSERT_THAT(words(ranks), Each(""));
    // This process loaded it once, as a version before that.
    for (const Rank& rank : ranks) EXPECT_FALSE(rank.job->needs_order());
  }
}

TEST_F(JobTest, MemoryIsRegisteredByAllRanksAndGoesBeforeTheJob) {
  {
    const std::vector<Rank> ranks = join(devices(3));
    ASSERT_THAT(words(ranks), Each(""));
    Memory first = make_memory(ranks, {"a", "a", "a"});
    EXPECT_THAT(first.why, Each(""));
    EXPECT_THAT(first.got, Each(testing::NotNull()));
    EXPECT_EQ(stub_.windows(), 3);  // none of the trial
    first.got.clear();
    EXPECT_EQ(stub_.windows(), 0);
    const Memory second = make_memory(ranks, {"b", "b", "b"});
    EXPECT_EQ(stub_.windows(), 3);
    EXPECT_EQ(stub_.memory(), 3);
    sum_on(ranks);
  }
  EXPECT_EQ(stub_.memory(), 0);
  EXPECT_EQ(stub_.live(), 0);
}

TEST_F(JobTest, LayoutsThatDifferKeepAllRanksFromRegisteredMemory) {
  const std::vector<Rank> ranks = join(devices(2));
  const Memory memory = make_memory(ranks, {"a", "b"});
  EXPECT_THAT(memory.got, Each(testing::IsNull()));
  EXPECT_THAT(memory.why,
              Each(AllOf(HasSubstr("at memory of tenon_0, the ranks differ in the registered"),
                         HasSubstr("a on rank 0, b on rank 1"))));
  EXPECT_EQ(stub_.windows() + stub_.memory(), 0);
  sum_on(ranks);
  // Another program may still have it.
  EXPECT_THAT(make_memory(ranks, {"c", "c"}).got, Each(testing::NotNull()));
}

// One call of one rank goes wrong: all do without, with a reason, and the job goes on.
TEST_F(JobTest, WhatNcclRefusesKeepsAllRanksFromRegisteredMemory) {
  for (const auto& [function, fault] :
       {std::pair("ncclMemAlloc", kStubRefuses), std::pair("ncclCommWindowRegister", kStubRefuses),
        std::pair("ncclCommWindowRegister", kStubFailsLater),
        std::pair("ncclCommWindowRegister", kStubNeverEnds)}) {
    {
      const std::vector<Rank> ranks = join(devices(2), 4s);
      ASSERT_THAT(words(ranks), Each(""));
      stub_.fail(function, fault);
      for (int round = 0; round < 2; ++round) {  // tried once
        const Memory memory = make_memory(ranks, {"a", "a"});
        EXPECT_THAT(memory.got, Each(testing::IsNull())) << function;
        EXPECT_THAT(memory.why, Each(HasSubstr(fault == kStubNeverEnds
                                                   ? "a trial was not done within 1 s"
                                                   : "registered memory, the ranks differ")))
            << function;
      }
      EXPECT_EQ(stub_.pending(), 0);
      sum_on(ranks);
    }
    // A trial that was given up ends in a thread of its own.
    const auto left = [&] { return stub_.windows() + stub_.live() + stub_.memory(); };
    for (int i = 0; i < 1000 && left() > 0; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(left(), 0) << function;
  }
}

TEST_F(JobTest, MemoryThatOneRankLacksIsPlainOnAll) {
  const std::vector<Rank> ranks = join(devices(2));
  EXPECT_THAT(make_memory(ranks, {"a", "a"}).got, Each(testing::NotNull()));
  stub_.fail("ncclMemAlloc", kStubRefuses);
  const Memory memory = make_memory(ranks, {"a", "a"});
  EXPECT_THAT(memory.got, Each(testing::IsNull()));
  EXPECT_THAT(memory.why, Each(AllOf(HasSubstr("8192 bytes on rank"),
                                     HasSubstr("none (NCCL has no 8192 bytes: "))));
  EXPECT_EQ(stub_.windows() + stub_.memory(), 0);
  sum_on(ranks);
}

TEST_F(JobTest, WithoutWindowsNoRankRegisters) {
  const std::vector<Rank> ranks = join(devices(2));
  stub_.set_windows(0);
  const Memory memory = make_memory(ranks, {"a", "a"});
  EXPECT_THAT(memory.got, Each(testing::IsNull()));
  EXPECT_THAT(memory.why, Each(HasSubstr("NCCL has no windows here")));
}

// A plan has the calls of a job, and none of them runs.
TEST(PlannedJob, RefusesEveryCall) {
  float value = 1, out[2] = {};
  void* const buffers[] = {&value, out};
  const int64_t numbers[] = {1, 1};
  for (const std::string_view op : {ir::kAllReduce, ir::kAllGather, ir::kBroadcast}) {
    const ir::Collective collective{.op = std::string(op), .ranks = 2};
    const auto call = planned_job(1, 2)->collectives()->make_call(collective, DType::kF32);
    EXPECT_THROW(call->enqueue(nullptr, buffers, numbers), InternalError) << op;
  }
  EXPECT_THROW(planned_job(2, 2), UserError);
}

TEST(SharedGpu, NamesTheRanksAndThePlace) {
  EXPECT_EQ(shared_gpu({"a 0000:01:00.0", "b 0000:01:00.0"}), "");
  EXPECT_THAT(shared_gpu({"a 1", "a 2", "a 2"}), HasSubstr("ranks 1 and 2 have the same GPU, 2"));
}

}  // namespace
}  // namespace tenon::distributed
