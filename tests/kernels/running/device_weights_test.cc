#include "kernels/running/device_weights.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>

#include "codegen/tile/builder.h"
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

// made[task] = x[task * step] + number: as little as shows who read what.
std::shared_ptr<const codegen::Kernel> sampling_kernel(int64_t number) {
  codegen::Builder b("sample");
  const codegen::ValueId x = b.buffer("x", DType::kU8), made = b.buffer("made", DType::kU8);
  const codegen::ValueId step = b.index_parameter("step");
  const codegen::ValueId sample = b.load({x, b.mul(b.task(), step)}, {});
  b.store({{made, b.task()}, b.add(sample, b.integer_constant(DType::kU8, number))});
  return std::make_shared<const codegen::Kernel>(b.finish());
}

class PackedOnDevice : public DeviceWeightsTest {
 protected:
  static constexpr int64_t kSamples = 4;

  // A constant of `pieces`, each kSamples bytes long and made of `bytes` of the model.
  void add(size_t pieces, size_t bytes, int64_t number) {
    Slot slot{Slot::Kind::kConstant, 0, {}, static_cast<int64_t>(pieces) * kSamples, 0, 0, "w"};
    const auto kernel = sampling_kernel(number);
    const auto step = static_cast<int64_t>(bytes) / kSamples;
    for (size_t i = 0; i < pieces; ++i) {
      std::vector<std::byte>& model = models_.emplace_back(bytes);
      for (int64_t sample = 0; sample < kSamples; ++sample) {
        model[static_cast<size_t>(sample * step)] = static_cast<std::byte>(10 * i + sample);
      }
      slot.on_device.pieces.push_back(
          {kernel, {{model}}, {step}, kSamples, i * static_cast<size_t>(kSamples)});
    }
    slot.pack = [this](int64_t, std::span<std::byte> out) {
      ++packed_by_host_;
      std::ranges::fill(out, std::byte{0xee});
    };
    program_.slots.push_back(std::move(slot));
  }

  static void expect_packed(const DeviceWeights& weights, size_t slot, size_t pieces,
                            int64_t number) {
    const auto* made = reinterpret_cast<const std::byte*>(weights.address(slot));
    for (size_t i = 0; i < pieces * kSamples; ++i) {
      EXPECT_EQ(made[i], static_cast<std::byte>(10 * (i / kSamples) + i % kSamples + number)) << i;
    }
  }

  void expect_from_host(const DeviceWeights& weights) {
    EXPECT_GT(packed_by_host_, 0);
    EXPECT_EQ(*reinterpret_cast<const std::byte*>(weights.address(0)), std::byte{0xee});
  }

  std::deque<std::vector<std::byte>> models_;
  std::atomic<int> packed_by_host_ = 0;
  codegen::GpuTarget target_ = device_->description().target();
};

TEST_F(PackedOnDevice, ConcurrentCopiesAreReadByKernelsThatAreLoadedOnce) {
  add(3, 1000, 1);
  Slot plain{Slot::Kind::kConstant, 0, {}, Dim(100), 0, 0, "b"};
  plain.pack = [](int64_t, std::span<std::byte> out) { std::ranges::fill(out, std::byte{7}); };
  program_.slots.push_back(plain);
  add(2, 4 << 20, 100);
  add(1, 64, 1);
  const DeviceWeights weights(device_, program_, {&target_, nullptr});
  expect_packed(weights, 0, 3, 1);
  expect_packed(weights, 2, 2, 100);
  expect_packed(weights, 3, 1, 1);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(weights.address(1))[99], std::byte{7});
  EXPECT_EQ(packed_by_host_, 0);
  EXPECT_EQ(stub_.calls("cuLaunchKernel") + stub_.calls("cuLaunchKernelEx"), 6);
  EXPECT_EQ(stub_.calls("cuModuleLoadDataEx"), 2);
  for (const Slot& slot : program_.slots) {
    EXPECT_EQ(slot.pack, nullptr);
    EXPECT_TRUE(slot.on_device.pieces.empty());
  }
}

// The area is used again for what comes next, behind the kernels that read it.
TEST_F(PackedOnDevice, ThroughAnAreaThatHoldsNotAll) {
  add(2, size_t{100} << 20, 1);
  add(1, size_t{40} << 20, 50);
  const size_t before = device_->memory().free;
  const DeviceWeights weights(device_, program_, {&target_, nullptr});
  expect_packed(weights, 0, 2, 1);
  expect_packed(weights, 1, 1, 50);
  EXPECT_EQ(packed_by_host_, 0);
  EXPECT_LE(before - device_->memory().free, size_t{4} << 20) << "the area was not given back";
}

TEST_F(PackedOnDevice, ByTheHostWhereThatIsWanted) {
  add(1, 64, 1);
  const DeviceWeights weights(device_, program_);
  expect_from_host(weights);
}

TEST_F(PackedOnDevice, ByTheHostWhereAKernelCannotBeLoaded) {
  add(1, 64, 33);
  stub_.script("fail cuModuleLoadDataEx 1+ 218");
  const DeviceWeights weights(device_, program_, {&target_, nullptr});
  expect_from_host(weights);
}

TEST_F(PackedOnDevice, ByTheHostWhereThereIsNoMemoryForAnArea) {
  add(1, size_t{100} << 20, 1);
  stub_.script("free_memory 8388608");
  const DeviceWeights weights(device_, program_, {&target_, nullptr});
  expect_from_host(weights);
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
    DeviceWeights weights(device_, program, {}, &pool);
    weights.share(*device_, pool);
    return weights;
  };
  const size_t before = device_->memory().free;
  {
    const DeviceWeights first = make('a');
    const size_t taken = before - device_->memory().free;
    const DeviceWeights second = make('a'), other = make('c');
    EXPECT_EQ(first.address(0), second.address(0));
    EXPECT_NE(first.address(0), other.address(0));
    EXPECT_EQ(*reinterpret_cast<const char*>(second.address(0)), 'a');
    EXPECT_EQ(*reinterpret_cast<const char*>(other.address(0)), 'c');
    EXPECT_LT(before - device_->memory().free, 2 * taken + 2 * kLarge / 4);
  }
  EXPECT_EQ(device_->memory().free, before);  // they go with the last who holds them
  EXPECT_EQ(pool.find(*device_, sha256("a"), kLarge), nullptr);
}

TEST_F(DeviceWeightsTest, SmallOnesAreSharedWhereAllBesideThemAreTheSame) {
  WeightPool pool;
  const auto make = [&](const std::vector<Slot>& slots) {
    Program program = program_;
    program.slots = slots;
    const auto lock = pool.lock();
    DeviceWeights weights(device_, program, {}, &pool);
    weights.share(*device_, pool);
    return weights;
  };
  const Slot a = saved_weight("a", 4096, 'a'), b = saved_weight("b", 100, 'b'),
             c = saved_weight("c", 100, 'c');
  Slot unnamed = c;
  unnamed.content.reset();
  const auto first = make({a, b}), second = make({a, b}), other = make({a, c}),
             swapped = make({b, a}), unknown = make({a, unnamed}), again = make({a, unnamed});
  EXPECT_EQ(first.address(0), second.address(0));
  EXPECT_EQ(first.address(1), second.address(1));
  EXPECT_EQ(*reinterpret_cast<const char*>(second.address(1)), 'b');
  EXPECT_NE(first.address(0), other.address(0));
  EXPECT_EQ(*reinterpret_cast<const char*>(other.address(1)), 'c');
  EXPECT_EQ(*reinterpret_cast<const char*>(swapped.address(0)), 'b');
  EXPECT_EQ(*reinterpret_cast<const char*>(swapped.address(1)), 'a');
  EXPECT_NE(unknown.address(0), again.address(0)) << "what an unnamed weight holds is not known";
}

TEST_F(DeviceWeightsTest, AreForOthersOnlyOnceTheyAreShared) {
  WeightPool pool;
  program_.slots = {saved_weight("a", 8 << 20, 'a')};
  const DeviceWeights weights(device_, program_, {}, &pool);
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
