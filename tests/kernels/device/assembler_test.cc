#include "kernels/device/assembler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "base/error.h"
#include "codegen/compile.h"

namespace tenon::device {
namespace {

constexpr std::string_view kPtx = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry nothing() { ret; }
)";

TEST(AssemblerTest, ADriverOlderThanAnyAssemblerGetsAReason) {
  const AssemblerAnswer& answer = nvjitlink(11);
  EXPECT_FALSE(answer.support);
  EXPECT_THAT(answer.support.reason, ::testing::HasSubstr("nvidia-nvjitlink"));
  EXPECT_EQ(answer.assembler, nullptr);
}

TEST(AssemblerTest, MakesMachineCodeAndSaysWhatIsWrong) {
  const AssemblerAnswer& answer = nvjitlink(13);
  if (!answer.support) GTEST_SKIP() << answer.support.reason;
  const MachineCode code = answer.assembler->assemble(kPtx, "sm_80");
  EXPECT_EQ(code.bytes.substr(1, 3), "ELF");
  EXPECT_EQ(code.remarks, "");
  EXPECT_NE(answer.assembler->assemble(kPtx, "sm_90a").bytes, code.bytes);
  try {
    answer.assembler->assemble(".version 8.0\n.target sm_80\nnonsense\n", "sm_80");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("sm_80"));
  }
  EXPECT_THROW(answer.assembler->assemble(kPtx, "sm_1"), UserError);
}

constexpr std::string_view kDealsRegisters = R"(.version 8.0
.target sm_90a
.address_size 64
.visible .entry deals(
	.param .u64 deals_param_0
)
.reqntid 256, 1, 1
.minnctapersm 1
{
	setmaxnreg.dec.sync.aligned.u32 40;
	ret;
}
)";

// A unit that others might call keeps its registers: then a whole program is made.
TEST(AssemblerTest, NvJitLinkRemarksOnWhatItIgnores) {
  const AssemblerAnswer& answer = nvjitlink(13);
  if (!answer.support) GTEST_SKIP() << answer.support.reason;
  EXPECT_THAT(answer.assembler->assemble(kDealsRegisters, "sm_90a").remarks,
              ::testing::HasSubstr("Performance Loss"));
}

TEST(AssemblerTest, NvrtcMakesWholePrograms) {
  const AssemblerAnswer& answer = nvrtc(13);
  if (!answer.support) GTEST_SKIP() << answer.support.reason;
  const MachineCode code = answer.assembler->assemble(kDealsRegisters, "sm_90a");
  EXPECT_EQ(code.bytes.substr(1, 3), "ELF");
  EXPECT_THAT(code.bytes, ::testing::HasSubstr("deals"));
  EXPECT_FALSE(runs_products_in_turn(code)) << code.remarks;
  const std::string nonsense =
      std::regex_replace(std::string(kDealsRegisters), std::regex("setmaxnreg"), "setnothing");
  try {
    answer.assembler->assemble(nonsense, "sm_90a");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("sm_90a"));
  }
  EXPECT_THROW(answer.assembler->assemble(kDealsRegisters, "sm_1"), UserError);
}

TEST(AssemblerTest, NvrtcOlderThanAnyGetsAReason) {
  EXPECT_THAT(nvrtc(11).support.reason, ::testing::HasSubstr("nvidia-cuda-nvrtc"));
}

struct Counting : Assembler {
  mutable int calls = 0;
  std::string remarks;
  std::string refusal = {};
  explicit Counting(std::string said = {}) : remarks(std::move(said)) {}
  MachineCode assemble(std::string_view ptx, std::string_view arch) const override {
    ++calls;
    if (!refusal.empty()) throw UserError(refusal);
    return {std::string(ptx) + std::string(arch), remarks};
  }
};

// Who is asked for which kernel.
class WhoAssemblesTest : public ::testing::Test {
 protected:
  Assembled assembled(std::string ptx) {
    codegen::GpuCode code;
    code.entry = "kernel";
    code.ptx = std::move(ptx) + std::to_string(++texts_);
    return assemble(code, content_of(code), "sm_90a", units_, whole_, nullptr);
  }
  static inline int texts_ = 0;  // the process remembers what was assembled
  Counting unit_assembler_, whole_assembler_;
  AssemblerAnswer units_{Support::yes(), &unit_assembler_, "units"};
  AssemblerAnswer whole_{Support::yes(), &whole_assembler_, "whole programs"};
};

TEST_F(WhoAssemblesTest, UnitsWhereTheyAreAsGood) {
  EXPECT_NE(assembled("plain").code, nullptr);
  EXPECT_EQ(unit_assembler_.calls, 1);
  EXPECT_EQ(whole_assembler_.calls, 0);
}

TEST_F(WhoAssemblesTest, WholeProgramsWhereRegistersAreDealtAnew) {
  EXPECT_NE(assembled("setmaxnreg").code, nullptr);
  EXPECT_EQ(unit_assembler_.calls, 0);
  EXPECT_EQ(whole_assembler_.calls, 1);
}

TEST_F(WhoAssemblesTest, WholeProgramsWhereProductsWouldRunInTurn) {
  unit_assembler_.remarks = "Potential Performance Loss: wgmma";
  EXPECT_EQ(assembled("wgmma").code->remarks, "");
  EXPECT_EQ(unit_assembler_.calls, 1);
  EXPECT_EQ(whole_assembler_.calls, 1);
}

TEST_F(WhoAssemblesTest, WholeProgramsWhereUnitsAreRefused) {
  unit_assembler_.refusal = "too old";
  EXPECT_NE(assembled("plain").code, nullptr);
  units_ = {Support::no("not installed")};
  EXPECT_NE(assembled("plain").code, nullptr);
  EXPECT_EQ(whole_assembler_.calls, 2);
}

TEST_F(WhoAssemblesTest, ElseTheDriverWithAReason) {
  whole_ = {Support::no("not installed")};
  EXPECT_EQ(assembled("setmaxnreg").code, nullptr);
  EXPECT_EQ(assembled("setmaxnreg").why, "not installed");
  unit_assembler_.remarks = "Potential Performance Loss: wgmma";
  EXPECT_EQ(assembled("wgmma").code, nullptr);
  EXPECT_EQ(unit_assembler_.calls, 1);
}

TEST_F(WhoAssemblesTest, TheDriverAlsoWhereNobodyDoesItWell) {
  whole_assembler_.remarks = "Potential Performance Loss: 'setmaxnreg' ignored";
  EXPECT_EQ(assembled("setmaxnreg").code, nullptr);
  EXPECT_THAT(assembled("setmaxnreg").why, ::testing::HasSubstr("ignored"));
}

TEST(AssemblerTest, EqualTextIsAssembledOncePerArchitecture) {
  const Counting counting;
  const AssemblerAnswer answer{Support::yes(), &counting, "the counting assembler"};
  const auto assembled = [&](std::string_view ptx, const std::string& arch) {
    return assemble_once(answer, sha256(ptx), ptx, arch)->bytes;
  };
  EXPECT_EQ(assembled("a", "sm_80"), "asm_80");
  EXPECT_EQ(assembled("a", "sm_80"), "asm_80");
  EXPECT_EQ(counting.calls, 1);
  EXPECT_EQ(assembled("a", "sm_90a"), "asm_90a");
  EXPECT_EQ(assembled("b", "sm_80"), "bsm_80");
  EXPECT_EQ(counting.calls, 3);
}

}  // namespace
}  // namespace tenon::device
