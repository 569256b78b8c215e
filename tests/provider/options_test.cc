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

TEST(ProviderOptions, PrecisionIsOneOfThree) {
  for (const char* value : {"exact", "int8", "tf32"}) {
    EXPECT_EQ(parse_options({{"precision_mode", value}}).precision_mode, value);
  }
  for (const char* value : {"", "tf", "TF32", "tf32,int8", "int8 | tf32", "f32"}) {
    EXPECT_THROW(parse_options({{"precision_mode", value}}), UserError) << value;
  }
}

TEST(ProviderOptions, StreamsAreDecimalOrHexadecimal) {
  EXPECT_EQ(parse_options({{"user_compute_stream", "0x7f00aa10"}}).user_compute_stream,
            0x7f00aa10U);
  EXPECT_EQ(parse_options({{"user_compute_stream", "4096"}}).user_compute_stream, 4096U);
  for (const char* value : {"", "0x", "-1", "12ab", "0x1 ", "0x10000000000000000"}) {
    EXPECT_THROW(parse_options({{"user_compute_stream", value}}), UserError) << value;
  }
}

TEST(ProviderOptions, AStreamOfZeroIsNoStreamUnlessAskedFor) {
  EXPECT_FALSE(parse_options({{"user_compute_stream", "0"}}).has_user_compute_stream);
  EXPECT_TRUE(parse_options({{"user_compute_stream", "1"}}).has_user_compute_stream);
  const Options legacy =
      parse_options({{"has_user_compute_stream", "1"}, {"user_compute_stream", "0"}});
  EXPECT_TRUE(legacy.has_user_compute_stream);
}

TEST(ProviderOptions, NumbersAreWholeAndNotNegative) {
  EXPECT_EQ(parse_options({{"memory_limit", "1073741824"}}).memory_limit, 1U << 30);
  EXPECT_EQ(parse_options({{"run_deadline_ms", "250"}}).run_deadline_ms, 250U);
  EXPECT_EQ(parse_options({{"cache_size_mb", "64"}}).cache_size_mb, 64U);
  for (const char* key : {"memory_limit", "run_deadline_ms", "device_id", "cache_size_mb"}) {
    for (const char* value : {"", "-1", "1.5", "1GB"}) {
      EXPECT_THROW(parse_options({{key, value}}), UserError) << key << "=" << value;
    }
  }
}

TEST(ProviderOptions, AnEmptyCacheFolderIsNone) {
  EXPECT_EQ(parse_options({{"cache_dir", ""}}).cache_dir, "");
  EXPECT_EQ(parse_options({{"cache_dir", "/a b"}}).cache_dir, "/a b");
  EXPECT_THAT(gpu_only(parse_options({{"cache_dir", "c"}})), ElementsAre("cache_dir"));
}

TEST(ProviderOptions, KnowsWhichOnesNeedAGpu) {
  EXPECT_TRUE(gpu_only(parse_options({{"claim", "all"}, {"target", "cpu"}})).empty());
  const Options options = parse_options({{"enable_cuda_graph", "1"}, {"memory_limit", "1"}});
  EXPECT_THAT(gpu_only(options), ElementsAre("enable_cuda_graph", "memory_limit"));
  EXPECT_THAT(gpu_only(parse_options({{"collective_overlap", "0"}})),
              ElementsAre("collective_overlap"));
  EXPECT_TRUE(gpu_only(parse_options({{"collective_overlap", "1"}})).empty());
  EXPECT_THAT(gpu_only(parse_options({{"collective_peer_memory", "0"}})),
              ElementsAre("collective_peer_memory"));
  EXPECT_THAT(gpu_only(parse_options({{"collective_windows", "1"}})),
              ElementsAre("collective_windows"));
}

TEST(ProviderOptions, KnowsWhichPermissionNobodyUses) {
  EXPECT_THAT(cpu_only(parse_options({{"precision_mode", "int8"}})),
              ElementsAre("precision_mode=int8"));
  EXPECT_THAT(gpu_only(parse_options({{"precision_mode", "tf32"}})),
              ElementsAre("precision_mode=tf32"));
  for (const char* mode : {"exact", "int8"}) {
    EXPECT_TRUE(gpu_only(parse_options({{"precision_mode", mode}})).empty()) << mode;
  }
  EXPECT_TRUE(cpu_only(parse_options({{"precision_mode", "tf32"}})).empty());
}

TEST(ProviderOptions, PartsOfAValidValueAreNotValid) {
  for (const char* value : {"", "gain", "gainful |", "|", "all ", "ALL"}) {
    EXPECT_THROW(parse_options({{"claim", value}}), UserError) << value;
  }
}

// tests/python/test_secrets.py takes the secrets from the document.
TEST(ProviderOptions, SecretsAreShownNowhere) {
  std::ifstream document("docs/options.md");
  std::vector<std::string> documented;
  for (std::string line; std::getline(document, line);) {
    if (line.find("**Secret**") != line.npos)
      documented.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  EXPECT_EQ(documented, secret_options());
  const std::string marker(64, 'e');
  for (const std::string& key : secret_options()) {
    const Options options = parse_options({{key, marker}});
    EXPECT_EQ(effective(options).at(key), "given");
    EXPECT_EQ(effective(Options{}).at(key), "");
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
