#include "codegen/llvm/processor_name.h"

#include <gtest/gtest.h>

namespace tenon::codegen {
namespace {

std::string arm(const std::string& implementer, const std::string& part) {
  return "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: " + implementer +
         "\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: " + part + "\nCPU revision\t: 1\n";
}

TEST(ProcessorName, IsWhatThePersonKnowsAndNotANumber) {
  EXPECT_EQ(processor_name(arm("0x41", "0xd0c")), "neoverse-n1");
  EXPECT_EQ(processor_name(arm("0x41", "0xd4f")), "neoverse-v2");
  EXPECT_EQ(processor_name("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"), "Some CPU @ 2 GHz");
}

TEST(ProcessorName, TellsTheNumbersOfAnUnknownCore) {
  EXPECT_EQ(processor_name(arm("0x7f", "0xabc")), "CPU 0x7f 0xabc");
  EXPECT_EQ(processor_name(""), "");
}

}  // namespace
}  // namespace tenon::codegen
