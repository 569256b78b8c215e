#include "provider/saved_partition.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace tenon::provider {
namespace {

SavedPartition partition() {
  SavedPartition saved;
  saved.inputs = {2, 0};
  saved.outputs = {0};
  saved.node_names = {"a", "", "c"};
  return saved;
}

TEST(SavedPartitionTest, ParsesBack) {
  const SavedPartition read = parse_saved_partition(to_bytes(partition()));
  EXPECT_EQ(read.inputs, partition().inputs);
  EXPECT_EQ(read.outputs, partition().outputs);
  EXPECT_EQ(read.node_names, partition().node_names);
}

TEST(SavedPartitionTest, EveryCutIsRefused) {
  const std::string bytes = to_bytes(partition());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(parse_saved_partition(bytes.substr(0, length)), UserError) << length;
  }
  EXPECT_THROW(parse_saved_partition(bytes + '\0'), UserError);
}

TEST(SavedPartitionTest, AClaimedLengthTakesNoMemory) {
  std::string bytes = to_bytes(partition());
  for (size_t i = 4; i < 12; ++i) bytes[i] = '\x7f';  // how many inputs
  EXPECT_THROW(parse_saved_partition(bytes), UserError);
}

TEST(SavedPartitionTest, ChangedBytesParseOrAreRefused) {
  std::mt19937 random(1);
  const std::string good = to_bytes(partition());
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    try {
      check_fits(parse_saved_partition(bytes), 3, 1);
    } catch (const UserError&) {
    }
  }
}

TEST(SavedPartitionTest, ItsIndicesMustBeTheNodes) {
  EXPECT_NO_THROW(check_fits(partition(), 3, 1));
  EXPECT_THROW(check_fits(partition(), 2, 1), UserError);
  EXPECT_THROW(check_fits(partition(), 3, 0), UserError);
}

}  // namespace
}  // namespace tenon::provider
