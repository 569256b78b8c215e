// The device runtime on whatever driver there is: part of the program for machines with a GPU, and
// the same on the stub driver where TENON_DRIVER_LIBRARY names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "codegen/tile/text.h"
#include "kernels/device/arena.h"
#include "kernels/device/uploader.h"

namespace tenon::device {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kAddOne =
    R"(kernel @any_add_one(%x: buffer<f32>, %y: buffer<f32>, %n: index) {
  %0 = task : index
  %1 = index.mul %0, 256 : index
  %2 = index.sub %n, %1 : index
  %3 = load %x[%1] strides(1) extents(%2) fill 0.0 : f32[256]
  %4 = constant 1.0 : f32[256]
  %5 = add %3, %4 : f32[256]
  store %y[%1], %5 strides(1) extents(%2) : f32[256]
})";

Address address_of(const void* memory) { return reinterpret_cast<Address>(memory); }

class AnyDriverTest : public testing::Test {
 protected:
  static constexpr int64_t kCount = 100003;

  void SetUp() override {
    if (Device::list().empty()) GTEST_SKIP() << "the driver offers no GPU";
    device_ = Device::open(0);
    code_ = codegen::compile_gpu(codegen::parse(kAddOne), 128, device_->description().target());
    kernel_ = device_->load(code_);
    x_ = Buffer(device_, kCount * sizeof(float), "x");
    y_ = Buffer(device_, kCount * sizeof(float), "y");
    numbers_.resize(kCount);
    std::iota(numbers_.begin(), numbers_.end(), 0.0f);
    const auto uploader = Uploader::make(device_);
    uploader->upload(x_.address(), numbers_.data(), x_.bytes());
    uploader->finish();
  }

  void add_one(Stream& stream, Address x, Address y) {
    const uint64_t arguments[] = {x, y, kCount};
    stream.launch(*kernel_, (kCount + 255) / 256, arguments);
  }

  // Every number is its index and `more`.
  void expect_more(Stream& stream, Address from, float more) {
    std::vector<float> values(kCount);
    stream.copy(address_of(values.data()), from, kCount * sizeof(float));
    stream.synchronize();
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(values[i], static_cast<float>(i) + more) << i;
  }

  std::shared_ptr<Device> device_;
  codegen::GpuCode code_;
  std::shared_ptr<const LoadedKernel> kernel_;
  Buffer x_, y_;
  std::vector<float> numbers_;
};

TEST_F(AnyDriverTest, TellsWhatTheGpuIs) {
  const Description& description = device_->description();
  EXPECT_FALSE(description.name.empty());
  EXPECT_GE(description.compute_major, 8);
  EXPECT_GE(description.sm_count, 1);
  EXPECT_GE(description.shared_bytes, 48 << 10);
  EXPECT_GT(description.memory_gb_s, 0);
  EXPECT_GE(description.pci_bus_id.size(), 12u) << description.pci_bus_id;
  const MemoryInfo memory = device_->memory();
  EXPECT_GT(memory.free, 0u);
  EXPECT_LE(memory.free, memory.total);
}

TEST_F(AnyDriverTest, RunsAKernel) {
  EXPECT_GT(kernel_->registers, 0);
  Stream stream(device_);
  add_one(stream, x_.address(), y_.address());
  expect_more(stream, y_.address(), 1);
}

TEST_F(AnyDriverTest, StreamsWaitForEachOther) {
  Stream first(device_), second(device_);
  Event begin(device_, true), end(device_, true);
  first.record(begin);
  for (int i = 0; i < 20; ++i) add_one(first, y_.address(), y_.address());
  add_one(first, x_.address(), y_.address());
  first.record(end);
  second.wait(end);
  add_one(second, y_.address(), y_.address());
  expect_more(second, y_.address(), 2);
  EXPECT_TRUE(end.done());
  EXPECT_GT(Event::milliseconds(begin, end), 0.0f);
  EXPECT_NO_THROW(first.synchronize(std::chrono::seconds(10)));
}

TEST_F(AnyDriverTest, GraphsReplayAndTakeOtherAddresses) {
  Stream stream(device_);
  stream.begin_capture();
  add_one(stream, x_.address(), y_.address());
  add_one(stream, y_.address(), y_.address());
  Graph graph(device_, stream.end_capture());
  stream.launch(graph);
  expect_more(stream, y_.address(), 2);

  const Buffer z(device_, y_.bytes(), "z");
  stream.begin_capture();
  add_one(stream, x_.address(), z.address());
  add_one(stream, z.address(), z.address());
  EXPECT_TRUE(graph.update(stream.end_capture()));
  stream.launch(graph);
  expect_more(stream, z.address(), 2);

  stream.begin_capture();
  add_one(stream, x_.address(), z.address());
  EXPECT_FALSE(graph.update(stream.end_capture())) << "a work less";
}

TEST_F(AnyDriverTest, AnAllocationBreaksACaptureAndNothingElse) {
  Stream stream(device_);
  stream.begin_capture();
  EXPECT_THROW(Buffer(device_, 1 << 20, "too late"), UserError);
  EXPECT_THROW(stream.end_capture(), UserError);
  EXPECT_FALSE(stream.capturing());
  add_one(stream, x_.address(), y_.address());
  expect_more(stream, y_.address(), 1);
}

TEST_F(AnyDriverTest, AnArenaSpansStreams) {
  Stream first(device_), second(device_);
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  for (int round = 0; round < 50; ++round) {
    Stream& stream = round % 2 == 0 ? first : second;
    void* piece = arena->allocate(kCount * sizeof(float), stream.handle());
    add_one(stream, x_.address(), address_of(piece));
    if (round % 10 == 9) expect_more(stream, address_of(piece), 1);
    arena->release(piece);
  }
  EXPECT_LE(arena->stats().blocks, 4);
  arena->forget(first.handle());
  arena->forget(second.handle());
  arena->shrink();
  EXPECT_EQ(arena->stats().reserved, 0);
}

TEST_F(AnyDriverTest, MoreMemoryThanThereIsLeavesTheDeviceUsable) {
  const std::string words = [&] {
    try {
      Buffer(device_, size_t{1} << 45, "everything");
    } catch (const OutOfMemory& error) {
      return std::string(error.what());
    }
    return std::string("it was given");
  }();
  EXPECT_THAT(words, HasSubstr("32.0 TiB wanted for everything"));
  EXPECT_EQ(device_->failure(), std::nullopt);
  Stream stream(device_);
  add_one(stream, x_.address(), y_.address());
  expect_more(stream, y_.address(), 1);
}

TEST_F(AnyDriverTest, CodeThatDoesNotAssembleIsAnErrorWithWords) {
  codegen::GpuCode broken = code_;
  broken.ptx = ".version 8.0\n.target sm_80\n.address_size 64\nnonsense\n";
  EXPECT_THROW(device_->load(broken), UserError);
  broken = code_;
  broken.entry = "another_name";
  EXPECT_THROW(device_->load(broken), UserError);
}

}  // namespace
}  // namespace tenon::device
