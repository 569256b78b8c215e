#include "distributed/nvshmem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/distributed/check_collectives.h"
#include "tests/distributed/host_device.h"
#include "tests/distributed/nvshmem_ranks.h"
#include "tests/distributed/rank_data.h"
#include "tests/distributed/ranks.h"

namespace tenon::distributed {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

auto came_through() {
  return AllOf(Field(&Ended::thrown, ""), Field(&Ended::failed, false), Field(&Ended::signal, 0));
}

class NvshmemTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NvshmemTest, ::testing::Values(1, 2, 3, 5));

TEST_P(NvshmemTest, EveryCollectiveOnEveryType) {
  const int size = GetParam();
  const NvshmemId id = make_nvshmem_id(stub_nvshmem().functions);
  const auto ended = run_processes(size, [&](int rank) {
    {
      const auto ranks = make_ranks(id, rank, size);
      // The ranks spin: many of them take long on few cores.
      for (const DType dtype : kMovedTypes) {
        const bool is_one_of_few = dtype == DType::kI8 || dtype == DType::kF16 ||
                                   dtype == DType::kF32 || dtype == DType::kU4;
        if (size <= 2 || is_one_of_few) check_collectives(*ranks, dtype, 37, 3);
      }
    }
    EXPECT_EQ(stub_nvshmem().live(), 0);
  });
  EXPECT_THAT(ended, Each(came_through()));
}

TEST_P(NvshmemTest, TheSameInGroups) {
  const int size = GetParam();
  // The odd ones, and the rest but the first.
  std::vector<std::vector<int>> groups(2);
  for (int rank = 1; rank < size; ++rank) groups[rank % 2].push_back(rank);
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  const auto ended = run_nvshmem(size, {}, [&](Communicator& ranks) {
    const int before = stub_nvshmem().live();
    {
      const auto group = ranks.split(groups);
      ASSERT_EQ(group == nullptr, ranks.rank() == 0);
      if (group != nullptr) {
        for (const DType dtype : {DType::kF32, DType::kI8, DType::kU4}) {
          check_collectives(*group, dtype, 13, 1);
        }
      }
    }
    EXPECT_EQ(stub_nvshmem().live(), before);
    check_collectives(ranks, DType::kI32, 5, 2);
  });
  EXPECT_THAT(ended, Each(came_through()));
}

TEST(NvshmemTest, SaysWhatItIsAndWhatItRefuses) {
  const auto ended = run_nvshmem(3, {}, [](Communicator& ranks) {
    EXPECT_EQ(ranks.engine(), "nvshmem 3.8.0");
    std::vector<float> in(6, 1), out(6);
    const std::vector<int64_t> counts{1, 1, 1};
    EXPECT_THAT(
        thrown_by([&] { ranks.all_gather(in.data(), out.data(), counts, DType::kF32, {}); }),
        HasSubstr("all_reduce, broadcast and barrier; take nccl for all_gather"));
    EXPECT_THROW(
        ranks.reduce_scatter(in.data(), out.data(), counts, DType::kF32, Reduction::kSum, nullptr),
        UserError);
    EXPECT_THROW(ranks.all_to_all(in.data(), out.data(), 1, DType::kF32, nullptr), UserError);
    EXPECT_THROW(ranks.permute(in.data(), out.data(), 1, DType::kF32, {}, nullptr), UserError);
    EXPECT_THROW(ranks.send(in.data(), 1, DType::kF32, (ranks.rank() + 1) % 3, nullptr), UserError);
    EXPECT_THROW(ranks.receive(out.data(), 1, DType::kF32, (ranks.rank() + 1) % 3, nullptr),
                 UserError);
    EXPECT_THROW(ranks.all_reduce(in.data(), out.data(), 2, DType::kF16, Reduction::kMax, nullptr),
                 UserError);
    for (const auto& groups : {std::vector<std::vector<int>>{{1, 0}}, {{0, 2, 1}}}) {
      EXPECT_THAT(thrown_by([&] { ranks.split(groups); }),
                  HasSubstr("groups of rising ranks that are equally far apart"));
    }
    // It was no call, and the communicator is fine.
    ranks.barrier(nullptr);
  });
  EXPECT_THAT(ended, Each(came_through()));
}

TEST(NvshmemTest, OneJobAtATimeAndAnotherAfterIt) {
  const NvshmemFunctions& functions = stub_nvshmem().functions;
  const std::vector<NvshmemId> ids{make_nvshmem_id(functions), make_nvshmem_id(functions)};
  const auto ended = run_processes(2, [&](int rank) {
    {
      const auto ranks = make_ranks(ids[0], rank, 2);
      EXPECT_THAT(thrown_by([&] { make_ranks(ids[1], rank, 2); }),
                  HasSubstr("NVSHMEM is in use in this process"));
      check_collectives(*ranks, DType::kF16, 9, 1);
    }
    EXPECT_THROW(make_ranks(ids[1], 2, 2), UserError);
    EXPECT_THROW(make_ranks(ids[1], 0, 0), UserError);
    check_collectives(*make_ranks(ids[1], rank, 2), DType::kBF16, 9, 1);
  });
  EXPECT_THAT(ended, Each(came_through()));
}

TEST(NvshmemLibraryTest, LoadsFromTheOldestVersionOn) {
  for (const int version : {30000, 30205, 30405, 30800}) {
    const StubNvshmem& stub = stub_nvshmem(version);
    EXPECT_EQ(stub.functions.version, version);
    EXPECT_EQ(stub.functions.path, TENON_STUB_NVSHMEM);
  }
  stub_nvshmem().set_version(21100);
  EXPECT_THAT(load_nvshmem(std::vector<std::string>{TENON_STUB_NVSHMEM}).support.reason,
              HasSubstr("is NVSHMEM 2.11.0, 3.0.0 or newer is needed"));
  EXPECT_THAT(load_nvshmem(std::vector<std::string>{"libtenon_no_nvshmem.so.3"}).support.reason,
              AllOf(HasSubstr("libtenon_no_nvshmem.so.3"), HasSubstr("TENON_NVSHMEM_LIBRARY")));
  EXPECT_THAT(load_nvshmem(std::vector<std::string>{"libc.so.6"}).support.reason,
              HasSubstr("does not say its version"));
}

TEST(NvshmemLibraryTest, ReducesWhatItKnowsAndNothingElse) {
  const auto why = [](DType dtype, Reduction reduction, int version = 30800) {
    return stub_nvshmem(version).functions.supports(dtype, reduction).reason;
  };
  for (const DType dtype : {DType::kI8, DType::kU8, DType::kI16, DType::kU16, DType::kI32,
                            DType::kU32, DType::kI64, DType::kU64}) {
    EXPECT_EQ(why(dtype, Reduction::kSum), "");
    EXPECT_EQ(why(dtype, Reduction::kMin), "");
  }
  EXPECT_EQ(why(DType::kBool, Reduction::kMax), "");
  for (const DType dtype : {DType::kBool, DType::kI8, DType::kU8}) {
    EXPECT_EQ(why(dtype, Reduction::kMax, 30205), "");
    EXPECT_THAT(why(dtype, Reduction::kMax, 30204), HasSubstr("3.2.5 on, this is 3.2.4"));
  }
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    EXPECT_EQ(why(dtype, Reduction::kSum), "");
    EXPECT_THAT(why(dtype, Reduction::kMax), HasSubstr("drop NaN"));
  }
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    EXPECT_EQ(why(dtype, Reduction::kProd), "");
    EXPECT_THAT(why(dtype, Reduction::kAverage), HasSubstr("ask for the sum"));
  }
  EXPECT_THAT(why(DType::kF8E4M3FN, Reduction::kSum), HasSubstr("does not know the type"));
  EXPECT_NE(why(DType::kU4, Reduction::kSum), "");
}

}  // namespace
}  // namespace tenon::distributed
