// Each of NVSHMEM's functions fails once, in each of its ways: the rank gets a CollectiveError
// within the deadline, its process lives, and NVSHMEM is not asked again in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "tests/distributed/nvshmem_ranks.h"
#include "tests/distributed/ranks.h"

namespace tenon::distributed {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Lt;

const NvshmemSettings kShort{.common = {milliseconds(1000)}};
const NvshmemSettings kLong{.common = {milliseconds(60'000)}};
constexpr const char* kSplit = "nvshmem_team_split_strided";

void sum(Communicator& ranks) {
  float value = 1;
  ranks.all_reduce(&value, &value, 1, DType::kF32, Reduction::kSum, nullptr);
  EXPECT_EQ(value, ranks.size());
}

// Every function of NVSHMEM's that collectives need.
void call_everything(Communicator& ranks) {
  sum(ranks);
  int32_t value = ranks.rank();
  ranks.broadcast(&value, &value, 1, DType::kI32, 0, nullptr);
  EXPECT_EQ(value, 0);
  ranks.barrier(nullptr);
  std::vector<int> all;
  for (int rank = 0; rank < ranks.size(); ++rank) all.push_back(rank);
  sum(*ranks.split(std::vector<std::vector<int>>{all}));
}

// Nothing may be asked of NVSHMEM any more, and a new one is refused with the first reason.
void expect_spoilt(const std::string& why) {
  EXPECT_THAT(thrown_by([] { make_ranks(NvshmemId{}, 0, 1); }),
              AllOf(HasSubstr("NVSHMEM can be used again by a new process only"), HasSubstr(why)));
}

struct Fault {
  const char* function;
  StubNvshmemFault fault;
  const char* words;
};
std::string fault_name(const ::testing::TestParamInfo<Fault>& info) {
  const char* kinds[] = {"", "Refuses", "Blocks", "TeamOfOne"};
  return std::string(info.param.function) + kinds[info.param.fault];
}

// One rank alone: nobody else waits.
class NvshmemFaultTest : public ::testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(
    Calls, NvshmemFaultTest,
    ::testing::Values(
        Fault{"nvshmemx_set_attr_uniqueid_args", kStubNvshmemRefuses, "as rank 0: NVSHMEM: status"},
        Fault{"nvshmemx_hostlib_init_attr", kStubNvshmemRefuses, "as rank 0: NVSHMEM: status 7"},
        Fault{"nvshmemx_hostlib_init_attr", kStubNvshmemBlocks, "NVSHMEM was not done within"},
        Fault{"nvshmemx_init_status", kStubNvshmemRefuses, "it has not started (status 0)"},
        Fault{"nvshmem_malloc", kStubNvshmemRefuses, "NVSHMEM has no 200 bytes"},
        Fault{"nvshmem_malloc", kStubNvshmemBlocks, "NVSHMEM was not done within"},
        Fault{"nvshmemx_team_sync_on_stream", kStubNvshmemRefuses, "all_reduce #1 of f32[1] (sum)"},
        Fault{"nvshmemx_float_sum_reduce_on_stream", kStubNvshmemRefuses, "NVSHMEM: status 7"},
        Fault{"nvshmemx_broadcastmem_on_stream", kStubNvshmemRefuses, "broadcast #2 of i32[1]"},
        Fault{"nvshmemx_barrier_on_stream", kStubNvshmemRefuses, "barrier #3 on rank 0 of 1"},
        Fault{kSplit, kStubNvshmemRefuses, "split #4"},
        Fault{kSplit, kStubNvshmemBlocks, "NVSHMEM was not done within 1 s"}),
    fault_name);

TEST_P(NvshmemFaultTest, IsACollectiveErrorAndTheProcessLives) {
  const auto [function, fault, words] = GetParam();
  const NvshmemId id = make_nvshmem_id(stub_nvshmem().functions);
  const auto ended = run_processes(1, [&](int) {
    stub_nvshmem().fail(function, fault);
    try {
      const auto ranks = make_ranks(id, 0, 1, fault == kStubNvshmemBlocks ? kShort : kLong);
      const std::string first = thrown_by([&] { call_everything(*ranks); });
      EXPECT_NE(first, "");
      EXPECT_EQ(thrown_by([&] { ranks->barrier(nullptr); }), first);
      throw CollectiveError(first);
    } catch (const CollectiveError& error) {
      EXPECT_EQ(stub_nvshmem().pending(), 0) << function << " was not called";
      expect_spoilt(error.what());
      throw;
    }
  });
  EXPECT_THAT(ended[0].thrown, HasSubstr(words));
  EXPECT_FALSE(ended[0].failed);
  EXPECT_THAT(ended[0].after, Lt(milliseconds(15'000)));
}

// An end must not throw and must not hang, whatever NVSHMEM does.
class NvshmemEndTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Calls, NvshmemEndTest,
                         ::testing::Values("nvshmem_team_destroy", "nvshmem_free",
                                           "nvshmemx_hostlib_finalize"));

TEST_P(NvshmemEndTest, IsBounded) {
  const auto ended = run_processes(1, [&](int) {
    {
      const auto ranks = make_ranks(make_nvshmem_id(stub_nvshmem().functions), 0, 1, kShort);
      stub_nvshmem().fail(GetParam(), kStubNvshmemBlocks);
      call_everything(*ranks);
    }
    EXPECT_EQ(stub_nvshmem().pending(), 0);
    expect_spoilt("NVSHMEM was not done within 1 s");
  });
  EXPECT_EQ(ended[0].thrown, "");
  EXPECT_FALSE(ended[0].failed);
  EXPECT_THAT(ended[0].after, Lt(milliseconds(15'000)));
}

TEST(NvshmemFaultTest, ATeamThatSilentlyHasOneRankIsAnError) {
  for (const char* function : {"TEAM_WORLD", kSplit}) {
    const auto ended = run_nvshmem(
        2, kLong,
        [](Communicator& ranks) {
          ranks.split(std::vector<std::vector<int>>{{0, 1}});
        },
        [&](int) { stub_nvshmem().fail(function, kStubNvshmemTeamOfOne); });
    EXPECT_THAT(
        ended[1].thrown,
        HasSubstr("NVSHMEM made a team of 1 ranks, in which this one is 0; it is rank 1 of 2"));
    EXPECT_THAT(ended[0].thrown, HasSubstr("NVSHMEM made a team of 1 ranks"));
  }
}

TEST(NvshmemFaultTest, RanksThatShareAGpuWithoutMpsAreRefusedAndLive) {
  const auto refused =
      run_nvshmem(2, kLong, call_everything, [](int) { stub_nvshmem().share_gpu(false); });
  for (const Ended& ended : refused) {
    EXPECT_THAT(ended.thrown, HasSubstr("share a GPU without MPS, where NVSHMEM has no collect"));
    EXPECT_FALSE(ended.failed);
  }
  const auto ended =
      run_nvshmem(2, kLong, call_everything, [](int) { stub_nvshmem().share_gpu(true); });
  EXPECT_EQ(ended[0].thrown + ended[1].thrown, "");
}

TEST(NvshmemFaultTest, NoIdIsAnError) {
  stub_nvshmem().fail("nvshmemx_get_uniqueid", kStubNvshmemRefuses);
  EXPECT_EQ(thrown_by([] { make_nvshmem_id(stub_nvshmem().functions); }),
            "NVSHMEM makes no id: status 7");
}

TEST(NvshmemFaultTest, ARankThatDoesNotComeEndsTheWaitAtTheDeadline) {
  const NvshmemId id = make_nvshmem_id(stub_nvshmem().functions);
  const auto ended = run_processes(1, [&](int) { make_ranks(id, 0, 2, kShort); });
  EXPECT_EQ(ended[0].thrown,
            "a job of 2 ranks, as rank 0: NVSHMEM was not done within 1 s, it waits for other "
            "ranks");
}

TEST(NvshmemFaultTest, ARankThatIsKilledEndsASplitAtTheDeadline) {
  // Long enough for two processes to meet on a busy machine.
  const NvshmemSettings settings{.common = {milliseconds(4000)}};
  const auto ended = run_nvshmem(2, settings, [](Communicator& ranks) {
    sum(ranks);
    if (ranks.rank() == 1) ::raise(SIGKILL);
    ranks.split(std::vector<std::vector<int>>{{0, 1}});
  });
  EXPECT_EQ(ended[1].signal, SIGKILL);
  EXPECT_THAT(ended[0].thrown, AllOf(HasSubstr("split #2"), HasSubstr("not done within 4 s")));
  EXPECT_THAT(ended[0].after, Lt(milliseconds(15'000)));
}

TEST(NvshmemFaultTest, AfterAnAbortEveryCallThrowsItsReason) {
  const auto ended = run_nvshmem(1, kLong, [](Communicator& ranks) {
    sum(ranks);
    std::thread([&] { ranks.abort("rank 1 is gone"); }).join();
    EXPECT_EQ(thrown_by([&] { sum(ranks); }),
              "rank 0 was aborted, it last finished all_reduce #1 of f32[1] (sum): rank 1 is gone");
    expect_spoilt("rank 1 is gone");
  });
  EXPECT_EQ(ended[0].thrown, "");
  EXPECT_FALSE(ended[0].failed);
}

}  // namespace
}  // namespace tenon::distributed
