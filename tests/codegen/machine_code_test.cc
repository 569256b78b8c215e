// That a race between asynchronous products and other instructions is found in machine code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/codegen/machine_code.h"

namespace tenon::codegen {
namespace {

std::string loop(const std::string& body) {
  return ".L_x_0:\n" + body + "/*0ff0*/ @!P0 BRA `(.L_x_0) ;\n/*1000*/ EXIT ;\n";
}
const std::string kProduct = "/*0010*/ HGMMA.64x32x16.F32 R24, R52, gdesc[UR16], R24, gsb0 ;\n";

TEST(MachineCode, FindsWritesToWhatAProductInFlightReads) {
  const std::string write = "/*0020*/ HMUL2 R53, R4, R5.H0_H0 ;\n";
  const std::string wait = "/*0030*/ WARPGROUP.DEPBAR.LE gsb0, 0x0 ;\n";
  EXPECT_THAT(hazards_in(loop(kProduct + write + wait)),
              testing::ElementsAre(testing::HasSubstr("HMUL2 R53")));
  EXPECT_THAT(hazards_in(loop(kProduct + wait + write)), testing::IsEmpty());
  // The write comes first in the text, and the product of the round before is still in flight.
  EXPECT_THAT(hazards_in(loop(write + kProduct)), testing::SizeIs(1));
  const std::string loads = "/*0020*/ LDS.128 R52, [R4] ;\n";
  EXPECT_THAT(hazards_in(loop(kProduct + loads)), testing::SizeIs(1));
}

TEST(MachineCode, CountsGroupsThatAWaitLeaves) {
  const std::string other = "/*0012*/ HGMMA.64x32x16.F32 R24, R60, gdesc[UR16], R24, gsb0 ;\n";
  const std::string wait = "/*0030*/ WARPGROUP.DEPBAR.LE gsb0, 0x1 ;\n";
  const std::string of_first = "/*0040*/ MOV R52, R4 ;\n", of_second = "/*0040*/ MOV R60, R4 ;\n";
  EXPECT_THAT(hazards_in(kProduct + other + wait + of_first), testing::IsEmpty());
  EXPECT_THAT(hazards_in(kProduct + other + wait + of_second), testing::SizeIs(1));
}

TEST(MachineCode, FindsReadsOfSumsInFlight) {
  const std::string read = "/*0020*/ STG.E desc[UR4][R2.64], R30 ;\n";
  EXPECT_THAT(hazards_in(kProduct + read),
              testing::ElementsAre(testing::HasSubstr("touches sums")));
  const std::string wait = "/*0018*/ WARPGROUP.DEPBAR.LE gsb0, 0x0 ;\n";
  EXPECT_THAT(hazards_in(kProduct + wait + read), testing::IsEmpty());
}

}  // namespace
}  // namespace tenon::codegen
