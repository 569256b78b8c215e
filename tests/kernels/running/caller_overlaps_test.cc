// Inputs that a Run copies, because an output is bound to memory of theirs: which, for programs
// that are written by hand.
#include "kernels/running/caller_overlaps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace tenon::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Use = LaunchDependencies::Use;
using Wait = codegen::Pdl::Wait;

// Callers by their numbers: two inputs and two outputs of 64 bytes, and a slot of the arena.
enum : size_t { kX, kZ, kY, kU, kArena };

class CallerOverlapsTest : public ::testing::Test {
 protected:
  CallerOverlapsTest() {
    using Kind = Slot::Kind;
    program_.slots = {{Kind::kInput, 0, {}, 64, 0, 0, "x"},
                      {Kind::kInput, 1, {}, 64, 0, 0, "z"},
                      {Kind::kOutput, 0, {}, 64, 0, 0, "y"},
                      {Kind::kOutput, 1, {}, 64, 0, 0, "u"},
                      {Kind::kArena, 0, {}, 64, 0, 9, "a"}};
    instance_.sizes = {64, 64, 64, 64, 64};
  }

  static Use reads(size_t slot) { return {slot, true, false}; }
  static Use writes(size_t slot) { return {slot, false, true}; }

  CompiledLaunch& add(std::vector<Use> uses, const std::string& node = "node",
                      Wait wait = Wait::kNone, bool always_waits = true) {
    launches_.push_back({"kernel", node, wait, always_waits, std::move(uses)});
    instance_.launches.emplace_back().tasks = 1;
    CompiledLaunch& launch = program_.launches.emplace_back();
    launch.node = node;
    return launch;
  }

  // `begins` of x, z, y and u.
  std::vector<size_t> copied(const std::vector<uintptr_t>& begins) {
    LaunchDependencies::Caches caches;
    program_.dependencies = {launches_, caches};
    const CallerOverlaps overlaps(program_);
    CallerOverlaps::Found found = overlaps.make_found();
    overlaps.find(instance_, begins, found);
    return found.copied;
  }
  std::string refusal(const std::vector<uintptr_t>& begins) {
    try {
      copied(begins);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  ir::Graph graph_;
  Program program_{graph_};
  ShapeInstance instance_;
  std::vector<LaunchDependencies::Launch> launches_;
};

TEST_F(CallerOverlapsTest, OnlyWhatSharesAByteIsCopied) {
  add({reads(kX), reads(kZ), writes(kY), writes(kU)});
  EXPECT_THAT(copied({1000, 2000, 3000, 4000}), IsEmpty());
  EXPECT_THAT(copied({1000, 2000, 1064, 1936}), IsEmpty()) << "they touch";
  for (const uintptr_t y : {937u, 968u, 1000u, 1032u, 1063u}) {
    EXPECT_THAT(copied({1000, 2000, y, 4000}), ElementsAre(kX)) << y;
    EXPECT_THAT(copied({2000, 1000, 4000, y}), ElementsAre(kZ)) << y;
  }
  EXPECT_THAT(copied({1000, 1000, 3000, 4000}), IsEmpty()) << "nobody writes to inputs";
}

TEST_F(CallerOverlapsTest, EachIsCopiedOnce) {
  add({reads(kX), reads(kZ), writes(kY), writes(kU)});
  EXPECT_THAT(copied({1000, 1016, 968, 1032}), UnorderedElementsAre(kX, kZ));
}

// The output of one input may be a long one that has several others in it.
TEST_F(CallerOverlapsTest, ALongBufferIsComparedWithAllInIt) {
  add({reads(kX), reads(kZ), writes(kY)});
  instance_.sizes[kY] = 4096;
  EXPECT_THAT(copied({1000, 4000, 512, 9000}), UnorderedElementsAre(kX, kZ));
  instance_.sizes[kX] = 4096;
  EXPECT_THAT(copied({512, 1000, 4600, 9000}), ElementsAre(kX));
}

TEST_F(CallerOverlapsTest, NoBytesAreNowhere) {
  add({reads(kX), reads(kZ), writes(kY), writes(kU)});
  instance_.sizes[kY] = instance_.sizes[kU] = 0;
  EXPECT_THAT(copied({1000, 2000, 1000, 1000}), IsEmpty());
  EXPECT_THAT(copied({1000, 2000, 1032, 1032}), IsEmpty());
}

TEST_F(CallerOverlapsTest, WhatIsReadBeforeTheFirstWriteNeedsNoCopy) {
  add({reads(kX), writes(kArena)});
  add({reads(kArena), reads(kZ), writes(kY)});
  add({reads(kZ), writes(kY), writes(kU)});
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), IsEmpty());
  EXPECT_THAT(copied({1000, 2000, 2000, 4000}), ElementsAre(kZ)) << "by the launch that writes";
  EXPECT_THAT(copied({1000, 2000, 3000, 2000}), ElementsAre(kZ));
  instance_.launches[1].tasks = instance_.launches[2].tasks = 0;
  EXPECT_THAT(copied({1000, 2000, 2000, 4000}), IsEmpty()) << "at other sizes nobody writes";
}

TEST_F(CallerOverlapsTest, SizesAreWrittenBeforeAnythingIsRead) {
  add({reads(kX), writes(kY)});
  program_.shape_writes.push_back({kU, DType::kI64, {}});
  EXPECT_THAT(copied({1000, 2000, 3000, 1000}), ElementsAre(kX));
}

TEST_F(CallerOverlapsTest, TwoOutputsInOnePlaceAreRefusedByName) {
  add({reads(kX), writes(kY), writes(kU)});
  for (const uintptr_t u : {2937u, 3000u, 3063u}) {
    EXPECT_THAT(refusal({1000, 2000, 3000, u}), HasSubstr("outputs 'y' and 'u' are bound to memory "
                                                          "that overlaps"))
        << u;
  }
  EXPECT_EQ(refusal({1000, 2000, 3000, 3064}), "");
}

// A copy of a buffer to where it is.
TEST_F(CallerOverlapsTest, AnInputThatIsAnOutputStaysWhereItIs) {
  CompiledLaunch& copy = add({reads(kX), writes(kY)});
  copy.kind = LaunchKind::kCopy;
  copy.slots = {kX, kY};
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), IsEmpty());
  EXPECT_THAT(copied({1000, 2000, 1004, 4000}), ElementsAre(kX));
  EXPECT_THAT(copied({1000, 1000, 1000, 4000}), IsEmpty()) << "nobody reads z";
}

TEST_F(CallerOverlapsTest, AnUpdateInPlaceIsNotCopiedUnlessOthersReadItLater) {
  add({reads(kX), writes(kArena)}, "before");
  add({reads(kX), writes(kY)}, "update").elidable_copy = SharedBuffers{kX, kY, 64, 64};
  add({reads(kX), writes(kY)}, "update");
  instance_.launches[1].from_bytes = instance_.launches[1].to_bytes = 64;
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), IsEmpty());
  EXPECT_THAT(copied({1000, 1000, 1000, 4000}), IsEmpty());
  EXPECT_THAT(refusal({1000, 2000, 1016, 4000}), HasSubstr("share part of their memory"));
  add({reads(kX), writes(kU)}, "behind");
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), ElementsAre(kX));
  EXPECT_THAT(copied({1000, 2000, 3000, 1000}), ElementsAre(kX)) << "no update of it";
}

TEST_F(CallerOverlapsTest, WhatIsReadWhereItIsWrittenNeedsNoCopy) {
  add({reads(kX), reads(kZ), writes(kY)}).in_place = {{kX, kY}};
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), IsEmpty());
  EXPECT_THAT(copied({1000, 2000, 1004, 4000}), ElementsAre(kX));
  EXPECT_THAT(copied({1000, 2000, 2000, 4000}), ElementsAre(kZ));
  EXPECT_THAT(copied({1000, 1000, 1000, 4000}), ElementsAre(kZ)) << "both in one place";
  instance_.sizes[kX] = 32;
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), ElementsAre(kX));
  instance_.sizes[kX] = 64;
  add({reads(kX), writes(kU)});
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), ElementsAre(kX)) << "read again behind it";
}

TEST_F(CallerOverlapsTest, WhatWasWrittenEarlierIsReadFromACopy) {
  add({reads(kZ), writes(kY)});
  add({reads(kX), writes(kY)}).in_place = {{kX, kY}};
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), ElementsAre(kX));
}

// With programmatic dependent launch a launch waits for the one before it, which may have ended
// without waiting.
TEST_F(CallerOverlapsTest, WhatMayStillBeReadIsCopied) {
  add({reads(kX), writes(kArena)}, "a", Wait::kFirst);
  add({reads(kZ), writes(kArena)}, "b", Wait::kLate, /*always_waits=*/false);
  add({reads(kArena), writes(kY)}, "c", Wait::kFirst);
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), ElementsAre(kX));
  EXPECT_THAT(copied({1000, 2000, 2000, 4000}), IsEmpty()) << "it waits for its end";
  launches_[1].always_waits = true;
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), IsEmpty());
  launches_[1].always_waits = false;
  launches_[2].wait = Wait::kNone;
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), IsEmpty()) << "it begins after all";
}

TEST_F(CallerOverlapsTest, WhatACollectiveReadsAsideIsCopied) {
  add({reads(kX), writes(kArena)}, "all_reduce");
  add({reads(kZ), writes(kY)}, "beside");
  add({reads(kArena), writes(kU)}, "behind");
  launches_[0].is_collective = true;
  launches_[0].joined = 2;
  EXPECT_THAT(copied({1000, 2000, 1000, 4000}), ElementsAre(kX));
  EXPECT_THAT(copied({1000, 2000, 3000, 1000}), IsEmpty());
}

// Buffers come in any order, and in another one than in the Run before.
TEST_F(CallerOverlapsTest, OrdersOfTheRunBeforeDoNotMatter) {
  add({reads(kX), reads(kZ), writes(kY), writes(kU)});
  program_.dependencies = {launches_, {}};
  const CallerOverlaps overlaps(program_);
  CallerOverlaps::Found found = overlaps.make_found();
  std::vector<uintptr_t> begins = {1000, 1100, 1200, 1300};
  do {
    overlaps.find(instance_, begins, found);
    EXPECT_THAT(found.copied, IsEmpty());
    std::vector<uintptr_t> shared = begins;
    shared[kY] = shared[kX] + 63;
    const bool meets_u = shared[kY] < shared[kU] + 64 && shared[kU] < shared[kY] + 64;
    if (meets_u) {
      EXPECT_THROW(overlaps.find(instance_, shared, found), UserError);
      continue;
    }
    overlaps.find(instance_, shared, found);
    EXPECT_THAT(found.copied, ::testing::Contains(kX));
  } while (std::next_permutation(begins.begin(), begins.end()));
}

}  // namespace
}  // namespace tenon::kernels
