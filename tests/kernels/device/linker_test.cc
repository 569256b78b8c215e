#include "kernels/device/linker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tenon::device {
namespace {

constexpr std::string_view kPtx = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry nothing() { ret; }
)";

TEST(LinkerTest, ADriverOlderThanAnyLinkerGetsAReason) {
  const LinkerAnswer& answer = linker(11);
  EXPECT_FALSE(answer.support);
  EXPECT_THAT(answer.support.reason, ::testing::HasSubstr("nvidia-nvjitlink"));
  EXPECT_EQ(answer.linker, nullptr);
}

TEST(LinkerTest, MakesMachineCodeAndSaysWhatIsWrong) {
  const LinkerAnswer& answer = linker(13);
  if (!answer.support) GTEST_SKIP() << answer.support.reason;
  const MachineCode code = answer.linker->link(kPtx, "sm_80");
  EXPECT_EQ(code.bytes.substr(1, 3), "ELF");
  EXPECT_EQ(code.remarks, "");
  EXPECT_NE(answer.linker->link(kPtx, "sm_90a").bytes, code.bytes);
  try {
    answer.linker->link(".version 8.0\n.target sm_80\nnonsense\n", "sm_80");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("sm_80"));
  }
  EXPECT_THROW(answer.linker->link(kPtx, "sm_1"), UserError);
}

// A unit that others might call keeps its registers: then the driver is asked for a whole program.
TEST(LinkerTest, RemarksOnWhatItIgnores) {
  const LinkerAnswer& answer = linker(13);
  if (!answer.support) GTEST_SKIP() << answer.support.reason;
  constexpr std::string_view kDealsRegisters = R"(.version 8.0
.target sm_90a
.address_size 64
.visible .entry deals() .reqntid 256, 1, 1 {
  setmaxnreg.dec.sync.aligned.u32 40;
  ret;
}
)";
  EXPECT_THAT(answer.linker->link(kDealsRegisters, "sm_90a").remarks,
              ::testing::HasSubstr("Performance Loss"));
}

TEST(LinkerTest, EqualTextIsLinkedOncePerArchitecture) {
  struct Counting : Linker {
    mutable int links = 0;
    MachineCode link(std::string_view ptx, std::string_view arch) const override {
      ++links;
      return {std::string(ptx) + std::string(arch), ""};
    }
  } counting;
  const LinkerAnswer answer{Support::yes(), &counting, "the counting linker"};
  const auto link = [&](std::string_view ptx, const std::string& arch) {
    return link_once(answer, sha256(ptx), ptx, arch)->bytes;
  };
  EXPECT_EQ(link("a", "sm_80"), "asm_80");
  EXPECT_EQ(link("a", "sm_80"), "asm_80");
  EXPECT_EQ(counting.links, 1);
  EXPECT_EQ(link("a", "sm_90a"), "asm_90a");
  EXPECT_EQ(link("b", "sm_80"), "bsm_80");
  EXPECT_EQ(counting.links, 3);
}

}  // namespace
}  // namespace tenon::device
