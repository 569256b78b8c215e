// Two processes on the GPUs of this machine, on one of them where there is one alone. What is
// measured is printed, and appended to the file that TENON_TEST_FIGURES names, a JSON object a
// line. Two ranks that share a GPU meet within microseconds under MPS only; figures without it mean
// nothing. Killing is for a machine without MPS, which leaves open what becomes of the other
// client.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#include "tests/distributed/check_collectives.h"
#include "tests/distributed/gpu_rank.h"
#include "tests/distributed/processes.h"
#include "tests/distributed/rank_data.h"
#include "tests/distributed/rendezvous/ranks.h"

namespace tenon::distributed {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::Field;

constexpr int kRanks = 2;
constexpr milliseconds kDeadline{30'000}, kSilence{3'000};
constexpr milliseconds kProgramLimit{240'000};
constexpr int kReplays = 10'000, kEach = 500;  // between two looks at the sums

auto came_through() {
  return AllOf(Field(&Ended::thrown, ""), Field(&Ended::failed, false), Field(&Ended::signal, 0));
}

// "engine": "nccl 2.32.3", then the members as they are given.
void report(const std::string& engine, const std::string& what, const std::string& members) {
  const std::string line =
      fmt::format("{{\"engine\": \"{}\", \"what\": \"{}\", {}}}", engine, what, members);
  fmt::print("{}\n", line);
  const char* file = std::getenv("TENON_TEST_FIGURES");
  if (file != nullptr && file[0] != '\0') std::ofstream(file, std::ios::app) << line << '\n';
}

class TwoRanksGpuTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    static std::map<std::string, std::string> reasons;
    auto found = reasons.find(GetParam());
    if (found == reasons.end()) {
      // By a process of its own: one that has used the GPU cannot fork any more.
      const Ended probe = run_processes(1, [](int) {
        const std::string why = why_no_ranks(GetParam(), kRanks);
        if (!why.empty()) throw CollectiveError(why);
      })[0];
      found = reasons.emplace(GetParam(), probe.thrown).first;
      if (probe.signal != 0)
        found->second = fmt::format("asking ends with signal {}", probe.signal);
    }
    if (!found->second.empty()) GTEST_SKIP() << found->second;
  }

  // `body` in two processes that have met.
  static std::vector<Ended> run(const std::function<void(GpuRank&)>& body) {
    const auto places = places_of(meeting(kRanks));
    return run_processes(
        kRanks,
        [&](int rank) {
          GpuRank gpu(GetParam(), places[rank], kDeadline, kSilence);
          body(gpu);
          // Who leaves first would be lost to the other.
          gpu.store().barrier("the end");
        },
        {}, kProgramLimit);
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, TwoRanksGpuTest,
                         ::testing::Values("nccl", "nccl_peers", "nvshmem"),
                         [](const auto& info) { return std::string(info.param); });

// Memory of one rank and a call on it.
struct AllReduce {
  AllReduce(GpuRank& gpu, DType dtype, int64_t elements)
      : gpu(gpu),
        dtype(dtype),
        count(elements),
        in(gpu.device(), storage_bytes(dtype, elements), "a test"),
        out(gpu.device(), storage_bytes(dtype, elements), "a test") {
    gpu.stream().fill(in.address(), 0, storage_bytes(dtype, elements));
  }
  void put() {
    gpu.ranks().all_reduce(reinterpret_cast<void*>(in.address()),
                           reinterpret_cast<void*>(out.address()), count, dtype, Reduction::kSum,
                           gpu.stream().handle());
  }
  // After one that connects the ranks, which no graph can hold.
  std::unique_ptr<device::Graph> capture(int times) {
    put();
    gpu.stream().synchronize(kDeadline);
    gpu.stream().begin_capture();
    for (int i = 0; i < times; ++i) put();
    return std::make_unique<device::Graph>(gpu.device(), gpu.stream().end_capture());
  }

  GpuRank& gpu;
  DType dtype;
  int64_t count;
  device::Buffer in, out;
};

TEST_P(TwoRanksGpuTest, EveryCollectiveOnEveryType) {
  const auto ended = run([](GpuRank& gpu) {
    const auto ranks = gpu.take_staged();
    for (const DType dtype : kMovedTypes) check_collectives(*ranks, dtype, 1031, 1);
    for (const int64_t count : {1, 4096, 70'001}) check_collectives(*ranks, DType::kF16, count, 2);
    for (const int64_t count : {8, 2056, 60'000}) {
      for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
        check_collectives(*ranks, dtype, count, 4);
      }
    }
    for (const auto& groups :
         {std::vector<std::vector<int>>{{0}, {1}}, {{1, 0}}, {{0, 1}}, {{1}}}) {
      if (!ranks->supports_groups(groups)) continue;
      const auto group = ranks->split(groups);
      ASSERT_EQ(group == nullptr, ranks->rank() == 0 && groups[0] == std::vector<int>{1});
      if (group == nullptr) continue;
      for (const DType dtype : {DType::kF16, DType::kI32, DType::kU4}) {
        check_collectives(*group, dtype, 13, 3);
      }
    }
  });
  EXPECT_THAT(ended, ::testing::Each(came_through()));
}

TEST_P(TwoRanksGpuTest, AGraphIsReplayedTenThousandTimes) {
  const auto ended = run([](GpuRank& gpu) {
    AllReduce sum(gpu, DType::kU32, 4096);
    const auto graph = sum.capture(1);
    std::vector<uint32_t> brought(4096), got(4096);
    const auto begin = steady_clock::now();
    for (int round = 0; round < kReplays / kEach; ++round) {
      for (size_t i = 0; i < brought.size(); ++i) {
        brought[i] = static_cast<uint32_t>(i) * 7 + 1000 * round + gpu.ranks().rank();
      }
      const size_t bytes = brought.size() * sizeof(uint32_t);
      gpu.stream().copy(sum.in.address(), reinterpret_cast<device::Address>(brought.data()), bytes);
      for (int i = 0; i < kEach; ++i) gpu.stream().launch(*graph);
      gpu.stream().copy(reinterpret_cast<device::Address>(got.data()), sum.out.address(), bytes);
      gpu.stream().synchronize(kDeadline);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], 2 * (i * 7 + 1000 * round) + 1) << "round " << round << ", element " << i;
      }
    }
    const std::chrono::duration<double, std::micro> took = steady_clock::now() - begin;
    if (gpu.ranks().rank() == 0) {
      report(gpu.ranks().engine(), "replay of one captured all-reduce of u32",
             fmt::format("\"bytes\": 16384, \"times\": {}, \"us\": {:.2f}", kReplays,
                         took.count() / kReplays));
    }
  });
  EXPECT_THAT(ended, ::testing::Each(came_through()));
}

// Microseconds of one launch of `graph`, the median of several samples.
double time_of(GpuRank& gpu, const std::function<void()>& launch) {
  constexpr int kSamples = 9, kLaunches = 20;
  std::vector<double> samples;
  for (int sample = 0; sample < kSamples; ++sample) {
    device::Event first(gpu.device(), true), second(gpu.device(), true);
    launch();
    gpu.stream().record(first);
    for (int i = 0; i < kLaunches; ++i) launch();
    gpu.stream().record(second);
    gpu.stream().synchronize(kDeadline);
    samples.push_back(1000.0 * device::Event::milliseconds(first, second) / kLaunches);
  }
  std::ranges::sort(samples);
  return samples[samples.size() / 2];
}

TEST_P(TwoRanksGpuTest, TimeOfAllReduces) {
  constexpr int kInGraph = 10;
  const auto ended = run([](GpuRank& gpu) {
    for (const int64_t bytes : {int64_t{8} << 10, int64_t{64} << 10, int64_t{128} << 10,
                                int64_t{256} << 10, int64_t{2} << 20}) {
      AllReduce sum(gpu, DType::kF16, bytes / 2);
      const auto graph = sum.capture(kInGraph);
      const double captured = time_of(gpu, [&] { gpu.stream().launch(*graph); }) / kInGraph;
      const double eager = time_of(gpu, [&] { sum.put(); });
      if (gpu.ranks().rank() != 0) continue;
      const auto figures = [&](double us) {
        return fmt::format("\"bytes\": {}, \"us\": {:.2f}", bytes, us);
      };
      report(gpu.ranks().engine(), "one of ten captured all-reduces of f16", figures(captured));
      report(gpu.ranks().engine(), "eager all-reduce of f16", figures(eager));
    }
  });
  EXPECT_THAT(ended, ::testing::Each(came_through()));
}

// Rank 1 gets a signal at some time of its replays. The other says so, and can go on alone.
void replay_until_signal(GpuRank& gpu, int signal, milliseconds after) {
  AllReduce sum(gpu, DType::kF16, 4096);
  const auto graph = sum.capture(1);
  if (gpu.ranks().rank() == 1) {
    std::thread([=] {
      std::this_thread::sleep_for(after);
      ::raise(signal);
    }).detach();
  }
  auto last_good = steady_clock::now();
  std::string thrown;
  try {
    for (;;) {
      gpu.stream().launch(*graph);
      sum.put();
      gpu.stream().synchronize(kDeadline);
      // What is aborted ends as if it were done.
      if (gpu.ranks().failure().empty()) last_good = steady_clock::now();
    }
  } catch (const CollectiveError& error) {
    thrown = error.what();
  }
  const std::chrono::duration<double, std::milli> took = steady_clock::now() - last_good;
  EXPECT_THAT(thrown, ::testing::HasSubstr("rank 1"));
  EXPECT_LT(took.count(), 10'000) << thrown;
  report(gpu.ranks().engine(), signal == SIGKILL ? "a rank is killed" : "a rank stops",
         fmt::format("\"reported_after_ms\": {:.0f}", took.count()));
  check_collectives(*gpu.make_alone(), DType::kF32, 37, 1);
}

class TwoRanksFaultGpuTest : public TwoRanksGpuTest {
 protected:
  static void check(int signal, int rounds) {
    for (int round = 0; round < rounds; ++round) {
      const auto places = places_of(meeting(kRanks));
      const auto ended = run_processes(kRanks, [&](int rank) {
        GpuRank gpu(GetParam(), places[rank], kDeadline, kSilence);
        replay_until_signal(gpu, signal, milliseconds(5 + 41 * round));
      });
      ASSERT_THAT(ended[0], came_through()) << "round " << round;
      ASSERT_EQ(ended[1].signal, SIGKILL);  // who is stopped is ended so by run_processes
    }
  }
};
// NVSHMEM has no end for a collective that waits for a lost rank.
INSTANTIATE_TEST_SUITE_P(Engines, TwoRanksFaultGpuTest, ::testing::Values("nccl", "nccl_peers"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TwoRanksFaultGpuTest, ARankThatIsKilledEndsTheOthersWait) { check(SIGKILL, 10); }
TEST_P(TwoRanksFaultGpuTest, ARankThatIsStoppedEndsTheOthersWait) { check(SIGSTOP, 3); }

}  // namespace
}  // namespace tenon::distributed
