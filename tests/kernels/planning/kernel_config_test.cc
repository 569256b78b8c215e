#include "kernels/planning/kernel_config.h"

#include <gtest/gtest.h>

namespace tenon::kernels {
namespace {

TEST(KernelConfig, TextIsWhatCutlassPeopleWrite) {
  const PlannedKernel gemm{{Skeleton::kGemm,
                            {{Knob::kTileM, 128},
                             {Knob::kTileN, 32},
                             {Knob::kKPerStage, 256},
                             {Knob::kStages, 4},
                             {Knob::kSplitK, 2},
                             {Knob::kCtasPerSm, 1}}},
                           13.84};
  EXPECT_EQ(gemm.text(),
            "tile 128x32, K/stage 256, 4 stages, split-K 2, 1 CTA/SM, 13.8 us expected");
  EXPECT_EQ(gemm.config.find(Knob::kSplitK), 2);
  EXPECT_EQ(gemm.config.find(Knob::kWarps), std::nullopt);
  const KernelConfig decode{Skeleton::kFlashDecode, {{Knob::kSplitKv, 0}, {Knob::kWarps, 4}}};
  EXPECT_EQ(decode.text(), "split-KV by cache length, 4 warps");
  EXPECT_EQ(KernelConfig{Skeleton::kLoop}.text(), "loop");
}

TEST(KernelConfig, EverySkeletonAndKnobHasAName) {
  for (int i = 0; i <= static_cast<int>(Skeleton::kLibrary); ++i) {
    EXPECT_FALSE(name(static_cast<Skeleton>(i)).empty());
  }
  for (int i = 0; i <= static_cast<int>(Knob::kKvCodes); ++i) {
    EXPECT_FALSE(name(static_cast<Knob>(i)).empty());
  }
}

TEST(RowRange, ContainsItsEndsAndNothingElse) {
  const Dim rows = Dim::symbol("m");
  for (const RowRange range :
       {RowRange{0, 1}, RowRange{2, 8}, RowRange{9}, RowRange{5, 5}, RowRange{}, RowRange{0, 0}}) {
    for (const int64_t m : {0, 1, 2, 5, 8, 9, 1000000}) {
      const bool inside = m >= range.first && m <= range.last;
      const Dim answer = range.contains(rows);
      EXPECT_EQ(answer.evaluate([&](std::string_view) { return m; }), inside ? 1 : 0)
          << range.text("rows") << ", m " << m;
      EXPECT_TRUE(range.contains(Dim(m)).is(inside ? 1 : 0));
    }
  }
}

TEST(RowRange, TextNamesTheEndThatCounts) {
  EXPECT_EQ((RowRange{0, 8}.text("rows")), "rows <= 8");
  EXPECT_EQ((RowRange{9, 16}.text("rows")), "rows <= 16");
  EXPECT_EQ((RowRange{17}.text("queries")), "queries > 16");
  EXPECT_EQ((RowRange{4, 4}.text("rows")), "4 rows");
  EXPECT_EQ(RowRange{}.text("rows"), "all rows");
}

}  // namespace
}  // namespace tenon::kernels
