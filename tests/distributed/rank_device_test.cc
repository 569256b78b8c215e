#include "distributed/rank_device.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/device/stream.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::distributed {
namespace {

void write_in_the_order_of_the_stream() {
  const auto gpu = device::Device::open(0);
  device::Stream stream(gpu);
  const device::Address memory = gpu->allocate(64, "a test");
  std::vector<unsigned char> bytes(64, 0xee);
  stream.copy(memory, reinterpret_cast<device::Address>(bytes.data()), bytes.size());
  {
    const auto rank = make_rank_device(gpu);
    rank->make_current();
    EXPECT_EQ(rank->compute_major(), gpu->description().compute_major);
    EXPECT_NE(rank->scratch(), nullptr);
    rank->fill_zeros(reinterpret_cast<void*>(memory), 63, stream.handle());
    rank->copy(reinterpret_cast<void*>(memory + 8), reinterpret_cast<void*>(memory + 63), 1,
               stream.handle());
  }
  stream.copy(reinterpret_cast<device::Address>(bytes.data()), memory, bytes.size());
  stream.synchronize();
  std::vector<unsigned char> wanted(64, 0);
  wanted.back() = wanted[8] = 0xee;
  EXPECT_EQ(bytes, wanted);
  gpu->release(memory);
}

TEST(RankDeviceTest, WritesMemoryOfTheGpuAndGivesItsOwnBack) {
  const test::StubDriver stub;
  write_in_the_order_of_the_stream();
  EXPECT_EQ(stub.leaks(), "");
}

}  // namespace
}  // namespace tenon::distributed
