// Which engine is taken, and what happens where a call of cuDNN's fails.
#include "kernels/cudnn/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "kernels/cudnn/graph_call.h"
#include "tests/kernels/cudnn/stub_library.h"

namespace tenon::cudnn {
namespace {

using ::testing::HasSubstr;

// y = relu(x * 3), one pixel after the other.
Convolution tripling() {
  Convolution problem;
  problem.dtype = DType::kF32;
  problem.filter = {1, 1, 1, 1};
  problem.window = {{1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}};
  problem.has_relu = true;
  return problem;
}

const std::vector<int64_t> kSizes = {1, 1, 2, 2, 1, 1, 2, 2, 64};  // with the workspace

const codegen::GpuTarget& target() {
  static const codegen::GpuTarget made;
  return made;
}

PlanAnswer plan_of(const StubLibrary& stub, const Rules& rules = {}) {
  return make_plan(stub.functions, {.described = &target()},
                   graph_of(tripling(), std::span(kSizes).first(8)), rules);
}

TEST(CudnnPlanTest, TheFirstEngineThatIsExactEnoughIsTaken) {
  const StubLibrary stub = stub_library();
  EXPECT_EQ(plan_of(stub).plan->chosen.engine, kStubTensorCore);
  EXPECT_EQ(plan_of(stub, {.tensor_cores = false}).plan->chosen.engine, kStubPlain);
  EXPECT_EQ(stub.live(), 0);
}

TEST(CudnnPlanTest, AnEngineThatIsWantedComesFirst) {
  const StubLibrary stub = stub_library();
  EXPECT_THAT(plan_of(stub).plan->engines, testing::ElementsAre(kStubTensorCore, kStubPlain));
  const auto wanted = [&](int64_t place, int64_t engine) {
    return plan_of(stub, {.wanted = EngineChoice{place, engine}}).plan->chosen.engine;
  };
  EXPECT_EQ(wanted(1, kStubPlain), kStubPlain);
  // Another list than the one that was told: the number counts, and what is not there is no matter.
  for (const int64_t place : {-1, 0, 7}) EXPECT_EQ(wanted(place, kStubPlain), kStubPlain);
  EXPECT_EQ(wanted(0, 99), kStubTensorCore);
  EXPECT_EQ(stub.live(), 0);
}

TEST(CudnnPlanTest, AWorkspaceThatIsNotThereIsAReason) {
  const StubLibrary stub = stub_library();
  stub.set_workspace(1000);
  EXPECT_EQ(plan_of(stub, {.workspace = 1000}).plan->workspace, 1000);
  const PlanAnswer answer = plan_of(stub, {.workspace = 999});
  EXPECT_FALSE(answer.plan);
  EXPECT_THAT(answer.support.reason, testing::AllOf(HasSubstr("cuDNN 9.19.0 has no engine"),
                                                    HasSubstr("1000 bytes of workspace")));
}

TEST(CudnnPlanTest, BlackwellIsNotAskedAboutBeforeItIsSafe) {
  const StubLibrary stub = stub_library(91801);
  codegen::GpuTarget blackwell;
  blackwell.arch = "sm_100a";
  const int before = stub.calls("cudnnBackendCreateDescriptor");
  const PlanAnswer answer = make_plan(stub.functions, {.described = &blackwell},
                                      graph_of(tripling(), std::span(kSizes).first(8)), {});
  EXPECT_THAT(answer.support.reason, HasSubstr("9.19.0"));
  EXPECT_EQ(stub.calls("cudnnBackendCreateDescriptor"), before);
  EXPECT_TRUE(plan_of(stub).plan);
}

// Each call of cuDNN's in turn: the first, the second, … of its kind.
TEST(CudnnPlanTest, ACallThatFailsLeavesAPlanOrAReasonAndNothingElse) {
  const StubLibrary stub = stub_library();
  for (const char* function : {"cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute",
                               "cudnnBackendFinalize", "cudnnBackendGetAttribute"}) {
    stub.fail(function);
    const PlanAnswer answer = plan_of(stub);
    EXPECT_EQ(stub.pending(), 0) << function;
    if (!answer.plan) {
      EXPECT_THAT(answer.support.reason, HasSubstr("was told to fail")) << function;
    }
    EXPECT_EQ(answer.plan.has_value(), answer.support.ok) << function;
  }
  EXPECT_EQ(stub.live(), 0);
}

struct Buffers {
  alignas(16) float x[4] = {1, -2, 3, -4};
  alignas(16) float w[1] = {3};
  alignas(16) float y[4] = {};
  alignas(16) std::byte workspace[64];
  std::vector<void*> list() { return {x, w, y, workspace}; }
};

GraphCall tripling_call(const StubLibrary& stub) {
  return GraphCall(&stub.functions, 0, tripling(), {});
}

TEST(CudnnGraphCallTest, APlanIsMadeOncePerSizes) {
  const StubLibrary stub = stub_library();
  {
    const GraphCall call = tripling_call(stub);
    std::vector<int64_t> others = kSizes;
    others[2] = others[6] = 1;
    call.prepare(kSizes);
    const int after_first = stub.calls("cudnnBackendFinalize");
    Buffers buffers;
    for (int run = 0; run < 3; ++run) call.enqueue(nullptr, buffers.list(), kSizes);
    EXPECT_EQ(stub.calls("cudnnBackendFinalize"), after_first + 3);  // variant packs
    EXPECT_THAT(buffers.y, testing::ElementsAre(3, 0, 9, 0));
    EXPECT_EQ(stub.last_engine(), kStubTensorCore);
    call.prepare(others);
    EXPECT_GT(stub.calls("cudnnBackendFinalize"), after_first + 3);
  }
  EXPECT_EQ(stub.live(), 0);
}

TEST(CudnnGraphCallTest, WhatFailsInARunIsAnErrorAndTheNextRunGoesOn) {
  const StubLibrary stub = stub_library();
  const GraphCall call = tripling_call(stub);
  Buffers buffers;
  for (const char* function : {"cudnnSetStream", "cudnnBackendExecute", "cudnnBackendFinalize"}) {
    call.prepare(kSizes);
    stub.fail(function);
    EXPECT_THROW(call.enqueue(nullptr, buffers.list(), kSizes), UserError) << function;
    EXPECT_EQ(stub.pending(), 0);
    call.enqueue(nullptr, buffers.list(), kSizes);
    EXPECT_THAT(buffers.y, testing::ElementsAre(3, 0, 9, 0));
  }
}

size_t failures_before(const GraphCall& call, Buffers& buffers) {
  try {
    call.enqueue(nullptr, buffers.list(), kSizes);
  } catch (const kernels::PlanFailed& failed) {
    return failed.failures_before;
  }
  return SIZE_MAX;
}

TEST(CudnnGraphCallTest, AnEngineThatFailsWhenItRunsIsReplacedByTheNext) {
  const StubLibrary stub = stub_library();
  {
    const GraphCall call = tripling_call(stub);
    size_t failures = 0;
    for (const int engine : {kStubTensorCore, kStubPlain, kStubSlow}) {
      Buffers buffers;
      call.enqueue(nullptr, buffers.list(), kSizes);
      EXPECT_THAT(buffers.y, testing::ElementsAre(3, 0, 9, 0));
      EXPECT_EQ(stub.last_engine(), engine);
      stub.fail("cudnnBackendExecute");
      EXPECT_EQ(failures_before(call, buffers), failures++);
      if (engine == kStubSlow) break;
      const kernels::PlanFailed failed("it failed", failures - 1);
      const std::string next = call.replace(failed, kSizes);
      EXPECT_EQ(next, engine == kStubTensorCore ? "engine 2" : "engine 0");
      EXPECT_EQ(call.replace(failed, kSizes), next) << "what another Run has replaced stays";
    }
    const kernels::PlanFailed last("it failed", failures - 1);
    try {
      call.replace(last, kSizes);
      FAIL() << "there is no other engine";
    } catch (const UserError& error) {
      EXPECT_STREQ(error.what(), "it failed; no other engine does it");
    }
    Buffers buffers;
    call.enqueue(nullptr, buffers.list(), kSizes);  // the last one stays
    EXPECT_EQ(stub.last_engine(), kStubSlow);
  }
  EXPECT_EQ(stub.live(), 0);
}

TEST(CudnnGraphCallTest, ABufferThatIsNotAlignedIsNamed) {
  const StubLibrary stub = stub_library();
  const GraphCall call = tripling_call(stub);
  Buffers buffers;
  std::vector<void*> list = buffers.list();
  list[0] = buffers.x + 1;
  EXPECT_THROW(call.enqueue(nullptr, list, kSizes), UserError);
}

TEST(CudnnGraphCallTest, ConcurrentRunsShareOnePlan) {
  const StubLibrary stub = stub_library();
  const GraphCall call = tripling_call(stub);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Buffers buffers;
      for (int run = 0; run < 20; ++run) {
        call.enqueue(nullptr, buffers.list(), kSizes);
        EXPECT_THAT(buffers.y, testing::ElementsAre(3, 0, 9, 0));
      }
    });
  }
}

}  // namespace
}  // namespace tenon::cudnn
