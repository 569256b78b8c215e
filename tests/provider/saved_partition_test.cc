#include "provider/saved_partition.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace tenon::provider {
namespace {

SavedPartition partition() {
  SavedPartition saved;
  saved.inputs = {{2, {DType::kF32, {{DeclaredTensor::kOpen, 64}}}}, {0, {DType::kU8}}};
  saved.outputs = {{0, {DType::kI64, {std::vector<int64_t>{}}}}};
  saved.node_names = {"a", "", "c"};
  return saved;
}

void expect_equal(const std::vector<SavedValue>& found, const std::vector<SavedValue>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].index, expected[i].index);
    EXPECT_EQ(found[i].declared.dtype, expected[i].declared.dtype);
    EXPECT_EQ(found[i].declared.dims, expected[i].declared.dims);
  }
}

TEST(SavedPartitionTest, ParsesBack) {
  const SavedPartition read = parse_saved_partition(to_bytes(partition()));
  expect_equal(read.inputs, partition().inputs);
  expect_equal(read.outputs, partition().outputs);
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
  bytes = to_bytes(partition());
  bytes[28] = '\x7f';  // the rank of the first
  EXPECT_THROW(parse_saved_partition(bytes), UserError);
}

TEST(SavedPartitionTest, UnknownTypesAreRefused) {
  for (const char type : {char{0}, static_cast<char>(DType::kString), '\x7f'}) {
    std::string bytes = to_bytes(partition());
    bytes[20] = type;
    EXPECT_THROW(parse_saved_partition(bytes), UserError) << int{type};
  }
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

TEST(DeclaredTensorTest, AnotherTypeRankOrExtentIsToldWithBoth) {
  const Dim n = Dim::symbol("n");
  const DeclaredTensor saved = DeclaredTensor::of(DType::kF32, Shape{n, 64});
  EXPECT_TRUE(is_declared_as(saved, DeclaredTensor::of(DType::kF32, Shape{5, Dim::symbol("m")})));
  EXPECT_TRUE(is_declared_as(saved, DeclaredTensor::of(DType::kF32, std::nullopt)));
  for (const DeclaredTensor& other :
       {DeclaredTensor::of(DType::kF64, Shape{n, 64}), DeclaredTensor::of(DType::kF32, Shape{n}),
        DeclaredTensor::of(DType::kF32, Shape{n, 32}),
        DeclaredTensor::of(DType::kF32, Shape{n, 64, 1}), DeclaredTensor{}}) {
    EXPECT_FALSE(is_declared_as(saved, other));
  }
  EXPECT_EQ(is_declared_as(saved, DeclaredTensor::of(DType::kI8, Shape{3})).reason,
            "is i8[3], and it was f32[?,64] when the context was compiled");
}

TEST(DeclaredTensorTest, BytesHoldCodesOfFp8AndNothingElse) {
  EXPECT_TRUE(holds(DType::kU8, DType::kF8E4M3FN));
  EXPECT_TRUE(holds(DType::kBF16, DType::kBF16));
  EXPECT_FALSE(holds(DType::kF8E4M3FN, DType::kU8));
  EXPECT_FALSE(holds(DType::kI8, DType::kU8));
  EXPECT_FALSE(holds(DType::kF32, DType::kF64));
}

}  // namespace
}  // namespace tenon::provider
