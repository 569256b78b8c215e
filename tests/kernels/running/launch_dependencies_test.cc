#include "kernels/running/launch_dependencies.h"
#include "kernels/build_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "graph_partitioner/ir/text.h"
#include "kernels/running/program.h"
#include "tests/kernels/device/pdl_kernels.h"

namespace tenon::kernels {
namespace {

using test::add_one_kernel;
using test::fetching_kernel;
using ::testing::HasSubstr;

enum : size_t { kX, kW, kA, kB, kY, kOwn };

class LaunchDependenciesTest : public ::testing::Test {
 protected:
  LaunchDependenciesTest() {
    using Kind = Slot::Kind;
    slots_ = {{Kind::kInput, 0, {}, 0, 0, 0, "x"},    {Kind::kConstant, 0, {}, 256, 0, 0, "w"},
              {Kind::kArena, 0, {}, 256, 0, 9, "a"},  {Kind::kArena, 0, {}, 256, 0, 9, "b"},
              {Kind::kOutput, 0, {}, 256, 0, 0, "y"}, {Kind::kArena, 0, {}, 256, 0, 9, "own"}};
  }

  // A node of one launch.
  void add(const codegen::Kernel& kernel, std::vector<size_t> slots) {
    dependencies_.begin_node();
    dependencies_.add(kernel, "node", slots, codegen::has_pdl(target_));
  }
  std::string refusal() const { return dependencies_.verify(slots_).reason; }

  codegen::GpuTarget target_;
  std::vector<Slot> slots_;
  LaunchDependencies dependencies_;
};

TEST_F(LaunchDependenciesTest, WhatIsFetchedBehindARunningLaunchMustBeThere) {
  add(add_one_kernel(true), {kX, kA});
  add(fetching_kernel(""), {kA, kW, kY});
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(dependencies_.first_beside(1), 0u);
  EXPECT_FALSE(dependencies_.launches()[1].uses[0].before_wait);
  EXPECT_TRUE(dependencies_.launches()[1].uses[1].before_wait);
}

TEST_F(LaunchDependenciesTest, AResultThatCountsAsConstantTooSoonIsRefused) {
  add(add_one_kernel(true), {kX, kA});
  add(fetching_kernel("constant"), {kA, kW, kY});
  EXPECT_THAT(refusal(), HasSubstr("launch 1 (fetch, node 'node') reads a before it waits, and "
                                   "before launch 0 (add_one), which writes a, need have ended"));
}

// Launch 1 begins while 0 has not waited yet: 2 may run beside both.
TEST_F(LaunchDependenciesTest, ALaunchRunsBesideAllThatOverlapEachOther) {
  add(add_one_kernel(true), {kX, kA});
  add(add_one_kernel(true), {kX, kB});
  add(fetching_kernel("constant"), {kA, kW, kY});
  EXPECT_EQ(dependencies_.first_beside(2), 0u);
  EXPECT_THAT(refusal(), HasSubstr("launch 0"));
}

TEST_F(LaunchDependenciesTest, WhatALaunchWithoutDependentsWroteIsReadableBeforeTheWait) {
  add(add_one_kernel(false), {kX, kA});
  EXPECT_FALSE(dependencies_.is_readable_before_wait(kA));  // this node may have more launches
  dependencies_.begin_node();
  EXPECT_TRUE(dependencies_.is_readable_before_wait(kA));
  EXPECT_FALSE(dependencies_.is_readable_before_wait(kB));
  add(add_one_kernel(true), {kX, kB});
  add(fetching_kernel("constant"), {kA, kW, kY});
  EXPECT_EQ(dependencies_.first_beside(1), 1u);
  EXPECT_EQ(dependencies_.first_beside(2), 1u);
  EXPECT_EQ(refusal(), "");
  EXPECT_FALSE(dependencies_.is_readable_before_wait(kB));
}

// Whoever stands between two launches may be left out of a Run: it orders nobody but those who use
// what it writes.
TEST_F(LaunchDependenciesTest, ALaunchThatMayBeLeftOutOrdersNobody) {
  add(add_one_kernel(true), {kX, kA});
  add(add_one_kernel(false), {kX, kB});
  add(fetching_kernel("constant"), {kA, kW, kY});
  EXPECT_EQ(dependencies_.first_beside(2), 2u);
  EXPECT_THAT(refusal(), HasSubstr("launch 0 (add_one), which writes a"));
}

// b has the place that a had in the arena.
TEST_F(LaunchDependenciesTest, WhatHadThePlaceBeforeMayBeUnderWayAsWell) {
  slots_[kA].last = 0;
  slots_[kB].first = 1;
  add(add_one_kernel(true), {kX, kA});
  add(fetching_kernel("constant"), {kB, kW, kY});
  EXPECT_THAT(refusal(), HasSubstr("reads b before it waits, and before launch 0 (add_one), which "
                                   "writes a"));
}

TEST_F(LaunchDependenciesTest, WhatIsALaunchesOwnIsNobodyElses) {
  add(fetching_kernel("constant", "own"), {kX, kW, kOwn});
  EXPECT_EQ(refusal(), "");
  EXPECT_FALSE(dependencies_.launches()[0].always_waits);
  add(fetching_kernel("constant", "own"), {kX, kW, kOwn});
  EXPECT_THAT(refusal(), HasSubstr("writes own before it waits"));
}

// The second launch may end before the first, which the third then knows nothing of.
TEST_F(LaunchDependenciesTest, ALaunchThatNeverWaitsBreaksTheChain) {
  add(add_one_kernel(true), {kX, kA});
  add(fetching_kernel("constant", "own"), {kX, kW, kOwn});
  EXPECT_EQ(refusal(), "");
  add(add_one_kernel(true), {kA, kY});
  EXPECT_THAT(refusal(), HasSubstr("launch 2 (add_one, node 'node') reads a before launch 0"));
}

// Copies fetch old rows of a cache while new ones are written to the same memory.
TEST_F(LaunchDependenciesTest, OnlyCopiesReadCachesThatAreWrittenInPlace) {
  dependencies_.add_cache(kX, kY);
  add(add_one_kernel(true), {kW, kY});
  add(fetching_kernel("constant"), {kX, kW, kA});
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(dependencies_.launches()[1].uses[0].old_rows);
  dependencies_.launches()[1].uses[0].old_rows = false;
  EXPECT_THAT(refusal(), HasSubstr("reads x before it waits, and before launch 0 (add_one), which "
                                   "writes y"));
}

// A sum over ranks that waits itself: what is behind it fetches weights meanwhile, and its result
// after the wait.
TEST_F(LaunchDependenciesTest, ACallMayLaunchDependents) {
  for (const bool launches : {false, true}) {
    for (const std::string constant : {"", "constant"}) {
      dependencies_ = {};
      add(add_one_kernel(true), {kX, kA});
      dependencies_.begin_node();
      dependencies_.add_call("AllReduce", "sum", std::vector<size_t>{kA, kB}, {false, true}, false,
                             launches);
      EXPECT_EQ(dependencies_.first_beside(1), launches ? 0u : 1u);
      dependencies_.begin_node();
      EXPECT_EQ(dependencies_.is_readable_before_wait(kB), !launches);
      add(fetching_kernel(constant), {kB, kW, kY});
      EXPECT_EQ(dependencies_.first_beside(2), launches ? 0u : 2u);
      if (launches && constant == "constant") {
        EXPECT_THAT(refusal(),
                    HasSubstr("reads b before it waits, and before launch 1 (AllReduce)"));
      } else {
        EXPECT_EQ(refusal(), "");
      }
    }
  }
}

TEST_F(LaunchDependenciesTest, OtherGpusRunLaunchesOneByOne) {
  target_.arch = "sm_80";
  add(add_one_kernel(true), {kX, kA});
  EXPECT_FALSE(dependencies_.launches_dependents(0));
  dependencies_.begin_node();
  EXPECT_FALSE(dependencies_.is_readable_before_wait(kA));  // kernels are the same as elsewhere
  add(fetching_kernel("constant"), {kA, kW, kY});
  EXPECT_EQ(refusal(), "");
}

// A step of a decoder's attention: lengths, rows, a product of rows that are made, attention over
// caches of the caller's.
TEST(LaunchDependencies, OfADecoderLayer) {
  constexpr const char* kText = R"(graph layer {
  input %x: f16[1,256]
  input %k: f16[1,2,1,64]
  input %v: f16[1,2,1,64]
  input %past_k: f16[1,2,2048,64]
  input %past_v: f16[1,2,2048,64]
  input %before: i32[1]
  %lengths: i32[1] = tenon::Loop(%before) name="lengths" body {
    input %in: i32[1]
    %out: i32[1] = Neg(%in)
    output %out
  }
  %rows: f16[1,256] = tenon::Loop(%x) name="norm" body {
    input %in: f16[1,256]
    %out: f16[1,256] = Neg(%in)
    output %out
  }
  const %w: f4e2m1[256,256] = sha256:0000000000000000000000000000000000000000000000000000000000000000 bytes:32768
  const %scales: f8e4m3fn[256,16] = sha256:0000000000000000000000000000000000000000000000000000000000000000 bytes:4096
  const %scale: f32[1] = hex:0000803f
  %product: f16[1,256] = tenon::ScaledDot(%rows, %w, _, _, %scales, _, %scale, _) {b_k_last=1, block_b=16, result="f16"} name="q"
  %q: f16[1,4,1,64] = Reshape(%product)
  %y: f16[1,4,1,64], %present_k: f16[1,2,2048,64], %present_v: f16[1,2,2048,64] = tenon::Attention(%q, %k, %v, _, %past_k, %past_v, %lengths) {causal=1, kv_heads=2, q_heads=4} name="attention"
  output %y
  output %present_k
  output %present_v
})";
  Settings settings;
  settings.host = codegen::detect_host();
  settings.gpu = codegen::GpuTarget{};
  settings.gpu->pipelines = true;
  std::string table;
  const Program program =
      make_program(ir::parse(kText), settings,
                   [&](std::string_view, std::string_view stage, std::string_view text) {
                     if (stage == "launch_dependencies") table = text;
                   });
  EXPECT_EQ(table, program.dependencies.text(program.slots));
  EXPECT_EQ(
      table,
      R"(launch | kernel | node | begins, if none is left out | waits | before the wait | after it
0 | loop_0 | lengths | after all | - | - | read before; write lengths
1 | loop_1 | norm | after all | first | - | read x; write rows
2 | pipelined_dot_2 | q | beside 1 | first | read constant q | read rows; write product
3 | copy_past_3 | attention | after all | - | - | read past_k, lengths; write present_k
4 | copy_past_3 | attention | after all | - | - | read past_v, lengths; write present_v
5 | flash_decode_4 | attention | after all | late | read past_k (old rows), past_v (old rows), lengths, counters 0 of attention, k, v; write counters 0 of attention | read product, scratch 0 of attention, scratch 1 of attention, scratch 2 of attention; write scratch 0 of attention, scratch 1 of attention, scratch 2 of attention, y, present_k, present_v
)");
}

}  // namespace
}  // namespace tenon::kernels
