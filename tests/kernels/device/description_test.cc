#include "kernels/device/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "kernels/device/specs.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::device {
namespace {

using ::testing::HasSubstr;

TEST(DescriptionTest, EveryArchitectureHasASpecThatPrintsWhatItParsed) {
  for (const char* arch : {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_103a",
                           "sm_110a", "sm_120a", "sm_121a"}) {
    const Description description = named_description(arch);
    EXPECT_EQ(description.arch, arch);
    EXPECT_GT(description.sm_count, 0);
    const codegen::ArchSpec& spec = codegen::arch_spec(arch);
    EXPECT_EQ(description.shared_bytes, spec.sm.shared_bytes_per_cta);
    EXPECT_EQ(description.compute_major, spec.compute_major);
    EXPECT_EQ(description.compute_minor, spec.compute_minor);
    EXPECT_GE(description.shared_bytes, 99 << 10);
    EXPECT_GT(description.memory_gb_s, 0);
    EXPECT_EQ(description.ordinal, -1);
    EXPECT_EQ(parse_description(description.text()).text(), description.text());
    EXPECT_EQ(description.target().arch, arch);
    EXPECT_EQ(description.target().shared_bytes, description.shared_bytes);
  }
}

TEST(DescriptionTest, ReadsItsOwnTextWithEveryField) {
  Description description = named_description("sm_90a");
  description.arch = "sm_90";
  description.forward = true;
  description.pci_bus_id = "0000:1b:00.0";
  description.ordinal = 3;
  description.clock_mhz = 1980;
  const Description again = parse_description(description.text());
  EXPECT_EQ(again.text(), description.text());
  EXPECT_TRUE(again.forward);
  EXPECT_EQ(again.ordinal, 3);
  EXPECT_EQ(again.clock_mhz, 1980);
}

std::string refusal(std::string_view text) {
  try {
    parse_description(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DescriptionTest, ABadLineIsNamed) {
  EXPECT_THAT(refusal("arch = sm_90a\ncolour = red\n"), HasSubstr("line 2: unknown key 'colour'"));
  EXPECT_THAT(refusal("sm_count = many"), HasSubstr("line 1: expected a number"));
  EXPECT_THAT(refusal("memory_bytes = -1"), HasSubstr("not negative"));
  EXPECT_THAT(refusal("compute = 9"), HasSubstr("major.minor"));
  EXPECT_THAT(refusal("forward = perhaps"), HasSubstr("true or false"));
  EXPECT_THAT(refusal("nothing"), HasSubstr("key = value"));
  EXPECT_THAT(refusal("name = x"), HasSubstr("'arch' is missing"));
}

TEST(DescriptionTest, AnUnknownArchitectureListsTheKnownOnes) {
  try {
    named_description("sm_70");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("sm_120a"));
  }
}

}  // namespace
}  // namespace tenon::device
