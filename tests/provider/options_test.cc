// The table of provider options, and docs/options.md against it.
#include "provider/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "base/error.h"

namespace tenon::provider {
namespace {

using ::testing::ElementsAre;

TEST(ProviderOptions, DefaultsSurviveTheWayThroughText) {
  std::map<std::string, std::string> given = effective(Options{});
  std::erase_if(given, [](const auto& entry) { return entry.second.empty(); });
  EXPECT_EQ(effective(parse_options(given)), effective(Options{}));
}

TEST(ProviderOptions, ListsAreSplitAtCommasAndEmptyPartsIgnored) {
  const Options options = parse_options({{"exclude_ops", "Softmax,,Gelu,"}});
  EXPECT_THAT(options.exclude_ops, ElementsAre("Softmax", "Gelu"));
  EXPECT_TRUE(parse_options({{"exclude_nodes", ""}}).exclude_nodes.empty());
}

TEST(ProviderOptions, EachValueLandsInItsField) {
  const Options options = parse_options({{"claim", "all"},
                                         {"precision_mode", "int8"},
                                         {"target", "cpu"},
                                         {"require_full_claim", "1"},
                                         {"report_file", "r.json"},
                                         {"dump_dir", "d"}});
  EXPECT_EQ(options.claim, "all");
  EXPECT_EQ(options.precision_mode, "int8");
  EXPECT_EQ(options.target, "cpu");
  EXPECT_TRUE(options.require_full_claim);
  EXPECT_EQ(options.report_file, "r.json");
  EXPECT_EQ(options.dump_dir, "d");
}

TEST(ProviderOptions, PartsOfAValidValueAreNotValid) {
  for (const char* value : {"", "gain", "gainful |", "|", "all ", "ALL"}) {
    EXPECT_THROW(parse_options({{"claim", value}}), UserError) << value;
  }
}

// Rows such as: | `claim` | `gainful` | ...
TEST(ProviderOptions, TheDocumentListsExactlyTheKeysAndDefaults) {
  std::ifstream document("docs/options.md");
  ASSERT_TRUE(document) << "tests run in the repository's root";
  const std::regex row(R"(^\| `([a-z_]+)` \| (?:`([^`]*)`)?)");
  std::map<std::string, std::string> documented;
  for (std::string line; std::getline(document, line);) {
    std::smatch match;
    if (std::regex_search(line, match, row)) documented[match[1]] = match[2];
  }
  EXPECT_EQ(documented, effective(Options{}));
}

}  // namespace
}  // namespace tenon::provider
