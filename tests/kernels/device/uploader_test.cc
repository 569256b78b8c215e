#include "kernels/device/uploader.h"

#include <gtest/gtest.h>

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
