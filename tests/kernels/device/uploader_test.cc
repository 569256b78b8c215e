#include "kernels/device/uploader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "tests/kernels/device/stub_driver.h"

namespace tenon::device {
namespace {

using test::StubDriver;

std::vector<unsigned char> pattern(size_t bytes) {
  std::vector<unsigned char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(i * 31 + i / 4096);
  return data;
}

void expect_arrived(const Buffer& buffer, const std::vector<unsigned char>& data) {
  EXPECT_EQ(std::memcmp(reinterpret_cast<const void*>(buffer.address()), data.data(), data.size()),
            0);
}

TEST(UploaderTest, BringsMoreThanItsBuffersHold) {
  const StubDriver stub;
  auto device = Device::open(0);
  const auto data = pattern((19 << 20) + 12345);
  const Buffer buffer(device, data.size(), "a weight");
  {
    const auto uploader = Uploader::make(device);
    uploader->upload(buffer.address(), data.data(), data.size());
    uploader->finish();
  }
  expect_arrived(buffer, data);
  EXPECT_EQ(stub.calls("cuMemHostAlloc"), stub.calls("cuMemFreeHost"));
}

TEST(UploaderTest, WorksWithoutPinnedMemory) {
  const StubDriver stub("fail cuMemHostAlloc 1+ 2");
  auto device = Device::open(0);
  const auto data = pattern(100000);
  const Buffer buffer(device, data.size(), "a weight");
  const auto uploader = Uploader::make(device);
  uploader->upload(buffer.address(), data.data(), data.size());
  uploader->finish();
  expect_arrived(buffer, data);
}

TEST(UploaderTest, ASmallUploadPinsNothing) {
  const StubDriver stub("lazy");
  auto device = Device::open(0);
  const auto data = pattern((19 << 20) + 12345);  // more than its buffers hold
  const Buffer buffer(device, data.size(), "a weight");
  const auto uploader = Uploader::make(device, data.size());
  uploader->upload(buffer.address(), data.data(), data.size());
  uploader->finish();
  expect_arrived(buffer, data);
  EXPECT_EQ(stub.calls("cuMemHostAlloc"), 0);
  EXPECT_EQ(stub.reports(), "");
}

TEST(UploaderTest, MakesPiecesOfWholeUnitsInItsBuffers) {
  constexpr size_t kUnit = 4608, kMost = 4 << 20;
  const StubDriver stub;
  auto device = Device::open(0);
  const auto data = pattern(kUnit * 4001);
  const Buffer buffer(device, data.size(), "a weight");
  const auto uploader = Uploader::make(device);
  std::atomic<size_t> made = 0, largest = 0, wrong = 0;
  const auto make = [&](int64_t first, std::span<std::byte> out) {
    wrong += first % kUnit != 0 || out.size() % kUnit != 0;
    made += out.size();
    if (out.size() > largest) largest = out.size();
    std::memcpy(out.data(), data.data() + first, out.size());
  };
  uploader->upload(buffer.address(), data.size(), make, kUnit);
  uploader->finish();
  expect_arrived(buffer, data);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(made, data.size());
  EXPECT_LE(largest, kMost);
}

TEST(UploaderTest, AUnitLargerThanItsBuffersIsStagedWhole) {
  constexpr size_t kUnit = 5 << 20;
  const StubDriver stub;
  auto device = Device::open(0);
  const auto data = pattern(kUnit + 100);
  const Buffer buffer(device, data.size(), "a weight");
  const auto uploader = Uploader::make(device);
  uploader->upload(
      buffer.address(), data.size(),
      [&](int64_t first, std::span<std::byte> out) {
        EXPECT_EQ(first % kUnit, 0u);
        std::memcpy(out.data(), data.data() + first, out.size());
      },
      kUnit);
  uploader->finish();
  expect_arrived(buffer, data);
}

TEST(UploaderTest, APieceThatCannotBeMadeIsTheCallersError) {
  StubDriver stub;
  {
    auto device = Device::open(0);
    const Buffer buffer(device, 20 << 20, "a weight");
    const auto uploader = Uploader::make(device);
    const auto fail = [](int64_t first, std::span<std::byte> out) {
      if (first > 0) throw UserError("no such weight");
      std::memset(out.data(), 0, out.size());
    };
    EXPECT_THROW(uploader->upload(buffer.address(), 20 << 20, fail), UserError);
    const auto data = pattern(100);  // it goes on
    uploader->upload(buffer.address(), data.data(), data.size());
    uploader->finish();
    expect_arrived(buffer, data);
  }
  EXPECT_EQ(stub.leaks(), "");
}

TEST(UploaderTest, AFailedCopyIsAnErrorAndLeavesNothingBehind) {
  StubDriver stub;
  {
    auto device = Device::open(0);
    const auto data = pattern(9 << 20);
    const Buffer buffer(device, data.size(), "a weight");
    const auto uploader = Uploader::make(device);
    stub.script("fail cuMemcpyAsync 2 1");
    EXPECT_THROW(uploader->upload(buffer.address(), data.data(), data.size()), UserError);
  }
  EXPECT_EQ(stub.leaks(), "");
}

}  // namespace
}  // namespace tenon::device
