// Kernels that read matrices through TMA: descriptors, launches with attributes, and every check
// that the stub makes of them, tried with the mistake that it is there for.
#include "kernels/device/tensor_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <vector>

#include "kernels/device/stream.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::device {
namespace {

using test::kBoxColumns;
using test::kBoxRows;
using test::StubDriver;
using test::tma_copy_code;
using ::testing::HasSubstr;

Address address_of(const void* memory) { return reinterpret_cast<Address>(memory); }

class TensorMapTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 10;  // the last box reaches past the end
  static constexpr size_t kBytes = kRows * kBoxColumns * sizeof(float);

  TensorMapTest() : numbers_(kRows * kBoxColumns) {
    std::iota(numbers_.begin(), numbers_.end(), 1.0f);
    stream_.copy(x_.address(), address_of(numbers_.data()), kBytes);
    stream_.synchronize();
  }

  MappedMatrix matrix() const {
    return {x_.address(), 4, kRows, kBoxColumns, kBoxColumns, kBoxRows, kBoxColumns};
  }
  TensorMap descriptor_of(const MappedMatrix& matrix) {
    return encode_tensor_map(*device_, matrix, "x");
  }
  void launch(Stream& stream, const LoadedKernel& kernel, const Buffer& x, const Buffer& y,
              std::span<const TensorMap> descriptors) {
    const uint64_t arguments[] = {x.address(), y.address(), kRows};
    stream.launch(kernel, (kRows + kBoxRows - 1) / kBoxRows, arguments, descriptors);
  }
  std::vector<float> result(const Buffer& buffer) {
    std::vector<float> values(numbers_.size());
    stream_.copy(address_of(values.data()), buffer.address(), kBytes);
    stream_.synchronize();
    return values;
  }
  void expect_found(const std::string& words) {
    EXPECT_THAT(stub_.take_reports(), HasSubstr(words));
  }
  std::string refusal(const MappedMatrix& matrix) {
    try {
      encode_tensor_map(*device_, matrix, "input 'x'");
    } catch (const UserError& error) {
      return error.what();
    }
    return "it was taken";
  }

  StubDriver stub_;
  std::shared_ptr<Device> device_ = Device::open(0);
  Stream stream_{device_};
  std::shared_ptr<const LoadedKernel> kernel_ = device_->load(tma_copy_code());
  Buffer x_{device_, kBytes, "x"}, y_{device_, kBytes, "y"};
  std::vector<float> numbers_;
};

TEST_F(TensorMapTest, AKernelFetchesThroughItsMap) {
  const TensorMap descriptor = descriptor_of(matrix());
  launch(stream_, *kernel_, x_, y_, {&descriptor, 1});
  EXPECT_EQ(result(y_), numbers_);
}

// 128 elements of 16 bits are two pieces, one behind the other as in memory.
TEST_F(TensorMapTest, WideRowsAreMappedInPieces) {
  MappedMatrix wide{x_.address(), 2, 2, 256, 256, 2, 128, 0, /*swizzled=*/true};
  const Buffer room(device_, 2 * 256 * 2, "room");
  wide.base = room.address();
  descriptor_of(wide);
  EXPECT_EQ(stub_.take_reports(), "");
  wide.columns = 192;
  EXPECT_THAT(refusal(wide), HasSubstr("need a multiple of 128"));
}

TEST_F(TensorMapTest, AGraphTakesTheMapOfAnotherBuffer) {
  const Buffer z(device_, kBytes, "z");
  const TensorMap of_x = descriptor_of(matrix());
  stream_.begin_capture();
  launch(stream_, *kernel_, x_, y_, {&of_x, 1});
  Graph graph(device_, stream_.end_capture());
  MappedMatrix other = matrix();
  other.base = z.address();
  const TensorMap of_z = descriptor_of(other);
  stream_.begin_capture();
  launch(stream_, *kernel_, z, y_, {&of_z, 1});
  EXPECT_TRUE(graph.update(stream_.end_capture()));
  stream_.fill(z.address(), 0, kBytes);
  stream_.launch(graph);
  EXPECT_EQ(result(y_), std::vector<float>(numbers_.size(), 0.0f));
}

TEST_F(TensorMapTest, PdlKernelsAreLaunchedWithTheAttributeAndOthersWithout) {
  const TensorMap descriptor = descriptor_of(matrix());
  launch(stream_, *kernel_, x_, y_, {&descriptor, 1});
  EXPECT_EQ(stub_.calls("cuLaunchKernelEx"), 1);
  EXPECT_EQ(stub_.calls("cuLaunchKernel"), 0);
  LoadedKernel patient = *kernel_;
  patient.pdl = false;
  launch(stream_, patient, x_, y_, {&descriptor, 1});
  EXPECT_EQ(stub_.calls("cuLaunchKernelEx"), 1);
  EXPECT_EQ(stub_.calls("cuLaunchKernel"), 1);
}

TEST_F(TensorMapTest, BlocksInClusters) {
  const TensorMap descriptor = descriptor_of(matrix());
  LoadedKernel clustered = *kernel_;
  clustered.cluster = 3;
  launch(stream_, clustered, x_, y_, {&descriptor, 1});
  EXPECT_EQ(result(y_), numbers_);
  clustered.cluster = 2;
  EXPECT_THROW(launch(stream_, clustered, x_, y_, {&descriptor, 1}), UserError);
  expect_found("3 CTAs in clusters of 2");
}

// ---- what TMA does not take, said before the driver is asked

TEST_F(TensorMapTest, RefusalsNameTheOperandAndSayWhatToDo) {
  MappedMatrix wrong = matrix();
  wrong.base += 4;
  EXPECT_THAT(refusal(wrong), HasSubstr("input 'x' begins at"));
  EXPECT_THAT(refusal(wrong), HasSubstr("bind a buffer"));
  wrong = matrix();
  wrong.stride = 31;
  EXPECT_THAT(refusal(wrong), HasSubstr("rows 124 bytes apart"));
  wrong = matrix();
  wrong.rows = 0;
  EXPECT_THAT(refusal(wrong), HasSubstr("0 x 32 elements"));
  wrong.rows = int64_t{1} << 31;  // coordinates would be below 0 from here on
  EXPECT_THAT(refusal(wrong), HasSubstr("2147483648 x 32 elements; each size must be from 1 to"));
  wrong = matrix();
  wrong.columns = wrong.stride = int64_t{1} << 31;
  EXPECT_THAT(refusal(wrong), HasSubstr("10 x 2147483648 elements"));
  EXPECT_EQ(stub_.calls("cuTensorMapEncodeTiled"), 0);
}

// ---- the stub's own checks

struct Encoding {
  int type = 2;
  uint32_t rank = 2;
  Address base = 0;
  uint64_t sizes[3] = {32, 10, 1};
  uint64_t stride = 128;
  uint32_t box[3] = {32, 4, 0};
  int swizzle = 3;
};

TEST_F(TensorMapTest, EncodingsThatTheStubReports) {
  const std::pair<const char*, std::function<void(Encoding&)>> mistakes[] = {
      {"its base is not aligned to 16 bytes", [](Encoding& e) { e.base += 8; }},
      {"not a multiple of 16 bytes apart", [](Encoding& e) { e.stride = 120; }},
      {"2^40 bytes apart", [](Encoding& e) { e.stride = uint64_t{1} << 40; }},
      {"it is empty", [](Encoding& e) { e.sizes[1] = 0; }},
      {"more than 2^32", [](Encoding& e) { e.sizes[0] = (uint64_t{1} << 32) + 1; }},
      {"its boxes are empty", [](Encoding& e) { e.box[1] = 0; }},
      {"exceed 256 elements", [](Encoding& e) { e.box[1] = 257; }},
      {"no multiple of 16 bytes", [](Encoding& e) { e.box[0] = 31; }},
      {"wider than what is swizzled", [](Encoding& e) { e.box[0] = 64; }},
      {"wider than what is swizzled", [](Encoding& e) { e.swizzle = 2; }},
      {"another kind than ours", [](Encoding& e) { e.rank = 4; }},
      {"do not lie side by side", [](Encoding& e) { e.rank = 3; }},
      {"another kind than ours", [](Encoding& e) { e.type = 99; }},
      {"reaches 128 bytes past an allocation", [](Encoding& e) { e.sizes[1] = 11; }},
  };
  const auto encode = [&](const Encoding& e, TensorMap* to) {
    constexpr uint32_t kSteps[] = {1, 1, 1};
    const uint64_t strides[] = {e.stride, 0};
    return device_->driver().encode_tensor_map(to, e.type, e.rank, reinterpret_cast<void*>(e.base),
                                               e.sizes, strides, e.box, kSteps, 0, e.swizzle, 3, 0);
  };
  device_->make_current();
  TensorMap descriptor[2];
  Encoding right;
  right.base = x_.address();
  EXPECT_EQ(encode(right, descriptor), kSuccess);
  EXPECT_EQ(stub_.reports(), "");
  for (const auto& [words, spoil] : mistakes) {
    Encoding wrong = right;
    spoil(wrong);
    EXPECT_NE(encode(wrong, descriptor), kSuccess) << words;
    expect_found(words);
  }
  EXPECT_NE(encode(right, reinterpret_cast<TensorMap*>(&descriptor[0].words[1])), kSuccess);
  expect_found("not aligned to 64 bytes");
}

TEST_F(TensorMapTest, ALaunchWithoutItsMap) {
  EXPECT_THROW(launch(stream_, *kernel_, x_, y_, {}), UserError);
  expect_found("it takes 4 arguments, got 3");
}

TEST_F(TensorMapTest, ALaunchWithTooManyMaps) {
  const TensorMap descriptors[] = {descriptor_of(matrix()), descriptor_of(matrix())};
  EXPECT_THROW(launch(stream_, *kernel_, x_, y_, descriptors), UserError);
  expect_found("it takes 4 arguments, got more than 4");
}

TEST_F(TensorMapTest, AMapThatWasNeverEncoded) {
  const TensorMap descriptor;
  EXPECT_THROW(launch(stream_, *kernel_, x_, y_, {&descriptor, 1}), UserError);
  expect_found("TMA descriptor 0 was never encoded");
}

TEST_F(TensorMapTest, AMapOfOtherMemory) {
  const Buffer z(device_, kBytes, "z");
  const TensorMap descriptor = descriptor_of(matrix());
  EXPECT_THROW(launch(stream_, *kernel_, z, y_, {&descriptor, 1}), UserError);
  expect_found("no TMA descriptor is of argument %x");
}

TEST_F(TensorMapTest, MapsOfOtherSizes) {
  const std::function<void(MappedMatrix&)> mistakes[] = {
      [](MappedMatrix& m) { m.rows = 9; },
      [](MappedMatrix& m) { m.columns = 31; },
      [](MappedMatrix& m) { m.stride = 36, m.rows = 8; },
      [](MappedMatrix& m) { m.box_rows = 3; },
      [](MappedMatrix& m) { m.element_bytes = 2, m.columns = m.stride = 64, m.box_columns = 64; },
      [](MappedMatrix& m) { m.tf32 = true; },  // would round what is only copied
  };
  for (const auto& spoil : mistakes) {
    MappedMatrix wrong = matrix();
    spoil(wrong);
    const TensorMap descriptor = descriptor_of(wrong);
    EXPECT_THROW(launch(stream_, *kernel_, x_, y_, {&descriptor, 1}), UserError);
    expect_found("no TMA descriptor is of argument %x");
  }
}

TEST_F(TensorMapTest, AMapParameterOfAnotherSize) {
  codegen::GpuCode code = tma_copy_code("short_map");
  code.ptx.replace(code.ptx.find("descriptor[128]"), 15, "descriptor[64]");
  const auto kernel = device_->load(code);
  const TensorMap descriptor = descriptor_of(matrix());
  EXPECT_THROW(launch(stream_, *kernel, x_, y_, {&descriptor, 1}), UserError);
  expect_found("a parameter of 64 bytes where a TMA descriptor has 128");
}

TEST_F(TensorMapTest, AnAttributeThatNobodyKnows) {
  LaunchAttribute attribute;
  attribute.id = 77;
  LaunchConfig config;
  config.grid_x = 1;
  config.block_x = 128;
  config.attributes = &attribute;
  config.attribute_count = 1;
  device_->make_current();
  void* none[] = {nullptr};
  EXPECT_NE(device_->driver().launch_with(&config, kernel_->function, none, nullptr), kSuccess);
  expect_found("attribute 77");
}

// ---- drivers that lack the functions

TEST(TensorMapDriverTest, DISABLED_WithoutMaps) {
  auto device = Device::open(0);
  EXPECT_FALSE(supports_tma(device->driver()));
  try {
    device->load(tma_copy_code());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has no function cuTensorMapEncodeTiled"));
    EXPECT_THAT(error.what(), HasSubstr("update it"));
  }
  EXPECT_NE(device->load(test::add_one_code()), nullptr);
}

TEST(TensorMapDriverTest, DISABLED_WithoutEarlyLaunches) {
  auto device = Device::open(0);
  EXPECT_FALSE(device->load(tma_copy_code())->pdl);
}

TEST(TensorMapDriverTest, AnOldDriverRunsWhatNeedsNoMaps) {
  EXPECT_EQ(test::run_alone("TensorMapDriverTest.DISABLED_WithoutMaps",
                            {{"TENON_STUB_SCRIPT", "drop cuTensorMapEncodeTiled"}}),
            0);
}

TEST(TensorMapDriverTest, PdlKernelsWaitWhereTheDriverHasNoPdl) {
  const std::string test = "TensorMapDriverTest.DISABLED_WithoutEarlyLaunches";
  EXPECT_EQ(test::run_alone(test, {{"TENON_STUB_SCRIPT", "drop cuLaunchKernelEx"}}), 0);
  EXPECT_EQ(test::run_alone(test, {{"TENON_STUB_SCRIPT", "driver_version 12020"}}), 0);
}

}  // namespace
}  // namespace tenon::device
