#include "kernels/running/device_weights.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "graph_partitioner/ir/text.h"
#include "kernels/running/program.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::kernels {
namespace {

using test::StubDriver;
using ::testing::HasSubstr;

// A program that is nothing but slots.
class DeviceWeightsTest : public ::testing::Test {
 protected:
  StubDriver stub_;
  std::shared_ptr<device::Device> device_ = device::Device::open(0);
  Program program_{ir::parse("graph g {\n  input %x: f32[1]\n  output %x\n}")};
};

TEST_F(DeviceWeightsTest, AreMadeInPiecesAndTakeNoMoreThanTheirBytes) {
  constexpr size_t kUnit = 4608, kBytes = kUnit * 2000, kSmall = 1000;
  std::atomic<size_t> made = 0, largest = 0;
  const PackPiece pack = [&](int64_t first, std::span<std::byte> out) {
    EXPECT_EQ(first % kUnit, 0u);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::byte>((static_cast<size_t>(first) + i) / kUnit);
    }
    made += out.size();
    if (out.size() > largest) largest = out.size();
  };
  Slot large{Slot::Kind::kConstant, 0, {}, Dim(static_cast<int64_t>(kBytes)), 0, 0, "w"};
  large.pack = pack;
  large.unit = kUnit;
  Slot small{Slot::Kind::kConstant, 0, {}, Dim(static_cast<int64_t>(kSmall)), 0, 0, "b"};
  small.data = aligned_bytes(kSmall);
  program_.slots.push_back(large);
  program_.slots.push_back(small);
  const size_t before = device_->memory().free;
  const DeviceWeights weights(device_, program_);
  const size_t taken = before - device_->memory().free;
  EXPECT_LE(static_cast<double>(taken), 1.05 * static_cast<double>(kBytes + kSmall));
  EXPECT_EQ(made, kBytes);
  EXPECT_LE(largest, kBytes / 2);  // never whole
  EXPECT_EQ(program_.slots[0].data, nullptr);
  EXPECT_EQ(program_.slots[1].data, nullptr);
  const auto* bytes = reinterpret_cast<const std::byte*>(weights.address(0));
  for (size_t unit = 0; unit < kBytes / kUnit; ++unit) {
    ASSERT_EQ(bytes[unit * kUnit + unit % kUnit], static_cast<std::byte>(unit)) << unit;
  }
}

TEST_F(DeviceWeightsTest, ShareAFewAllocationsAndEachHasAPlace) {
  constexpr int64_t kMega = 1 << 20;
  const auto fill = [](int64_t number) {
    return [number](int64_t first, std::span<std::byte> out) {
      for (size_t i = 0; i < out.size(); i += kMega) {
        const int64_t mega = (first + static_cast<int64_t>(i)) / kMega;
        std::memset(out.data() + i, static_cast<int>(number + mega),
                    std::min<size_t>(kMega, out.size() - i));
      }
    };
  };
  const std::vector<int64_t> sizes{30 * kMega, 100, 20 * kMega, 70 * kMega, 0, 20 * kMega, 5};
  for (size_t i = 0; i < sizes.size(); ++i) {
    Slot slot{Slot::Kind::kConstant, 0, {}, sizes[i], 0, 0, fmt::format("w{}", i)};
    slot.pack = fill(static_cast<int64_t>(i));
    slot.unit = kMega;
    program_.slots.push_back(slot);
  }
  const long before = stub_.calls("cuMemAlloc_v2");
  const DeviceWeights weights(device_, program_);
  EXPECT_EQ(stub_.calls("cuMemAlloc_v2") - before, 3);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    const auto* bytes = reinterpret_cast<const std::byte*>(weights.address(i));
    EXPECT_EQ(weights.address(i) % 256, 0u);
    EXPECT_EQ(bytes[0], static_cast<std::byte>(i)) << i;
    const int64_t last = sizes[i] - 1;
    EXPECT_EQ(bytes[last], static_cast<std::byte>(i + last / kMega)) << i;
  }
}

TEST_F(DeviceWeightsTest, AWeightThatDoesNotFitIsNamed) {
  program_.slots.push_back({Slot::Kind::kConstant, 0, {}, Dim(100 << 20), 0, 0, "embedding"});
  stub_.script("free_memory 1000000");
  try {
    DeviceWeights(device_, program_);
    FAIL();
  } catch (const device::OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("100.0 MiB wanted for weight 'embedding'"));
  }
}

// A weight that a file vouches for.
Slot saved_weight(const std::string& name, int64_t bytes, char value) {
  Slot slot{Slot::Kind::kConstant, 0, {}, Dim(bytes), 0, 0, name};
  slot.pack = [value](int64_t, std::span<std::byte> out) {
    std::memset(out.data(), value, out.size());
  };
  slot.content = sha256(std::string(1, value));
  return slot;
}

TEST_F(DeviceWeightsTest, ThatAreTheSameAreShared) {
  constexpr int64_t kLarge = 8 << 20, kSmall = 4096;
  WeightPool pool;
  const auto make = [&](char value) {
    Program program = program_;
    program.slots = {saved_weight("a", kLarge, value), saved_weight("b", kSmall, 'b')};
    const auto lock = pool.lock();
    DeviceWeights weights(device_, program, &pool);
    weights.share(*device_, pool);
    return weights;
  };
  const size_t before = device_->memory().free;
  {
    const DeviceWeights first = make('a');
    const size_t taken = before - device_->memory().free;
    const DeviceWeights second = make('a'), other = make('c');
    EXPECT_EQ(first.address(0), second.address(0));
    EXPECT_NE(first.address(1), second.address(1));
    EXPECT_NE(first.address(0), other.address(0));
    EXPECT_EQ(*reinterpret_cast<const char*>(second.address(0)), 'a');
    EXPECT_EQ(*reinterpret_cast<const char*>(other.address(0)), 'c');
    EXPECT_LT(before - device_->memory().free, 2 * taken + 2 * kLarge / 4);
  }
  EXPECT_EQ(device_->memory().free, before);  // they go with the last who holds them
  EXPECT_EQ(pool.find(*device_, sha256("a"), kLarge), nullptr);
}

TEST_F(DeviceWeightsTest, AreForOthersOnlyOnceTheyAreShared) {
  WeightPool pool;
  program_.slots = {saved_weight("a", 8 << 20, 'a')};
  const DeviceWeights weights(device_, program_, &pool);
  EXPECT_EQ(pool.find(*device_, sha256("a"), 8 << 20), nullptr);
  weights.share(*device_, pool);
  EXPECT_NE(pool.find(*device_, sha256("a"), 8 << 20), nullptr);
  EXPECT_EQ(pool.find(*device_, sha256("a"), 4 << 20), nullptr);
}

TEST(PackWhole, MakesEveryPieceOnce) {
  constexpr size_t kUnit = 4608, kBytes = kUnit * 1000 + 17;
  std::atomic<size_t> made = 0;
  const auto whole = pack_whole(
      kBytes,
      [&](int64_t first, std::span<std::byte> out) {
        EXPECT_EQ(first % kUnit, 0u);
        made += out.size();
        std::memset(out.data(), 7, out.size());
      },
      kUnit);
  EXPECT_EQ(made, kBytes);
  EXPECT_EQ(std::count(whole.get(), whole.get() + kBytes, std::byte{7}), kBytes);
}

}  // namespace
}  // namespace tenon::kernels
