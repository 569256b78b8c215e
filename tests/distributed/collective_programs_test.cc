// Collectives inside of programs: each rank is a thread that compiles and runs the same graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "distributed/collective_calls.h"
#include "distributed/loopback.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/selector.h"
#include "tests/distributed/ranks.h"
#include "tests/kernels/run_graph.h"

namespace tenon::distributed {
namespace {

using kernels::HostTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Twice, so that what a first Run leaves behind is seen.
std::vector<std::vector<double>> run(int ranks, std::string_view text,
                                     const std::function<HostTensor(int rank)>& input) {
  std::vector<std::vector<double>> results(ranks);
  const Communicators all = make_loopback(ranks, {std::chrono::milliseconds(20'000)});
  // The program keeps its communicator; the test keeps all of them.
  const auto thrown = run_ranks(all, [&](Communicator& rank) {
    kernels::Settings settings = kernels::test_settings();
    settings.collectives = make_collectives(std::shared_ptr<Communicator>(&rank, [](auto*) {}));
    const ir::Graph fused = fuse(ir::parse(std::string(text)));
    for (const ir::NodeId id : fused.order()) {
      const Support runs = kernels::supports(fused, fused.node(id), settings);
      ASSERT_TRUE(runs) << runs.reason;
    }
    const auto executable = kernels::build_for_test(fused, settings);
    for (int i = 0; i < 2; ++i) {
      kernels::TestContext context(fused, {input(rank.rank())});
      executable->run(context);
      results[rank.rank()] = context.take_outputs().at(0).numbers();
    }
  });
  for (const std::string& error : thrown) EXPECT_EQ(error, "");
  return results;
}

HostTensor tens(int rank, std::vector<int64_t> dims) {
  return HostTensor::from(DType::kF32, std::move(dims),
                          [&](int64_t i) { return 10.0 * rank + static_cast<double>(i); });
}

TEST(CollectivePrograms, SumsBetweenLoops) {
  const auto results = run(3, R"(graph main {
    input %x: f32[n]
    %a: f32[n] = Neg(%x)
    %s: f32[n] = com.microsoft::AllReduce(%a)
    %y: f32[n] = Abs(%s)
    output %y
  })",
                           [](int rank) { return tens(rank, {2}); });
  for (const auto& result : results) EXPECT_THAT(result, ElementsAre(30, 33));
}

// Of four sums two are left, and codes travel instead of what they are made of.
TEST(CollectivePrograms, FewerAndNarrowerOnesGiveTheSame) {
  const auto sums = run(3, R"(graph main {
    input %x: f32[n]
    %a: f32[n] = Neg(%x)
    %b: f32[n] = Add(%x, %x)
    %s: f32[n] = com.microsoft::AllReduce(%a)
    %t: f32[n] = com.microsoft::AllReduce(%b)
    %both: f32[n] = Add(%s, %t)
    %u: f32[n] = com.microsoft::AllReduce(%x)
    %v: f32[n] = com.microsoft::AllReduce(%x)
    %most: f32[n] = Max(%u, %v)
    %y: f32[n] = Add(%both, %most)
    output %y
  })",
                        [](int rank) { return tens(rank, {2}); });
  for (const auto& result : sums) EXPECT_THAT(result, ElementsAre(60, 66));
  const auto codes = run(2, R"(graph main {
    input %x: f32[m,2]
    const %scale: f32[] = hex:0000003f
    const %zero: u8[] = hex:80
    %g: f32[m,4] = com.microsoft::AllGather(%x) {axis=1, group_size=2}
    %y: u8[m,4] = QuantizeLinear(%g, %scale, %zero)
    output %y
  })",
                         [](int rank) {
                           return tens(rank, {2, 2});
                         });
  for (const auto& result : codes) {
    EXPECT_THAT(result, ElementsAre(128, 130, 148, 150, 132, 134, 152, 154));
  }
}

TEST(CollectivePrograms, GathersAlongTheLastAxis) {
  const auto results = run(2, R"(graph main {
    input %x: f32[m,2]
    %y: f32[m,4] = com.microsoft::AllGather(%x) {axis=1, group_size=2}
    output %y
  })",
                           [](int rank) {
                             return tens(rank, {2, 2});
                           });
  for (const auto& result : results) EXPECT_THAT(result, ElementsAre(0, 1, 10, 11, 2, 3, 12, 13));
}

TEST(CollectivePrograms, EveryOther) {
  const auto of = [&](std::string_view line) {
    return run(2, fmt::format("graph main {{\n input %x: f32[4,1]\n {}\n output %y\n}}", line),
               [](int rank) {
                 return tens(rank, {4, 1});
               });
  };
  auto results = of("%y: f32[4,1] = com.microsoft::AllToAll(%x) {group_size=2}");
  EXPECT_THAT(results[0], ElementsAre(0, 1, 10, 11));
  EXPECT_THAT(results[1], ElementsAre(2, 3, 12, 13));
  results = of("%y: f32[2,1] = tenon::ReduceScatter(%x) {ranks=2, reduction=\"max\"}");
  EXPECT_THAT(results[0], ElementsAre(10, 11));
  EXPECT_THAT(results[1], ElementsAre(12, 13));
  results = of("%y: f32[4,1] = tenon::Broadcast(%x) {ranks=2, root=1}");
  EXPECT_THAT(results[0], ElementsAre(10, 11, 12, 13));
  results = of("%y: f32[4,1] = tenon::Permute(%x) {pairs=[1,0], ranks=2}");
  EXPECT_THAT(results[0], ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(results[1], ElementsAre(0, 0, 0, 0));
}

TEST(CollectivePrograms, GroupsHaveCommunicatorsOfTheirOwn) {
  const auto results = run(4, R"(graph main {
    input %x: f32[1]
    %y: f32[1] = tenon::AllReduce(%x) {groups=[0,2,-1,1,3], ranks=2, reduction="sum"}
    output %y
  })",
                           [](int rank) { return tens(rank, {1}); });
  EXPECT_THAT(results,
              ElementsAre(ElementsAre(20), ElementsAre(40), ElementsAre(20), ElementsAre(40)));
}

Support refusal(std::string_view line, std::shared_ptr<const kernels::Collectives> ranks) {
  kernels::Settings settings;
  settings.collectives = std::move(ranks);
  const ir::Graph graph =
      ir::parse(fmt::format("graph main {{\n input %x: f8e8m0[4]\n {}\n output %y\n}}", line));
  return kernels::supports(graph, graph.node(graph.order()[0]), settings);
}

TEST(CollectivePrograms, ReasonsSayWhatToDo) {
  const Communicators all = make_loopback(2);
  const auto ranks = make_collectives(std::shared_ptr<Communicator>(all[0].get(), [](auto*) {}));
  const std::string sum = "%y: f8e8m0[4] = tenon::AllReduce(%x) {reduction=\"sum\"}";
  EXPECT_THAT(refusal(sum, nullptr).reason, HasSubstr("torchrun"));
  EXPECT_THAT(refusal(sum, ranks).reason, HasSubstr("f8e8m0"));
  EXPECT_THAT(refusal("%y: f8e8m0[12] = tenon::AllGather(%x) {ranks=3}", ranks).reason,
              HasSubstr("for 3 ranks, and this job has 2"));
  EXPECT_TRUE(refusal("%y: f8e8m0[8] = tenon::AllGather(%x) {ranks=2}", ranks));
}

}  // namespace
}  // namespace tenon::distributed
