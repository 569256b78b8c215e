#include "codegen/gpu_code_bytes.h"

#include <gtest/gtest.h>

#include "base/byte_form.h"
#include "base/error.h"

namespace tenon::codegen {
namespace {

GpuCode sample() {
  GpuCode code{"kernel_0", std::string(5000, 'p'), 384, 200 << 10, {}, true};
  code.tma_descriptors.push_back({.buffer = 2,
                                  .dtype = DType::kF8E4M3FN,
                                  .rows = {3, 0},
                                  .columns = {-1, int64_t{1} << 40},
                                  .stride = {4, 7},
                                  .box_rows = 64,
                                  .box_columns = 128,
                                  .groups = 2,
                                  .swizzled = true,
                                  .tf32 = false});
  TmaDescriptor& rounded = code.tma_descriptors.emplace_back();
  rounded.dtype = DType::kF32;
  rounded.box_rows = 1;
  rounded.box_columns = 4;
  rounded.tf32 = true;
  return code;
}

bool equal(const TmaDescriptor::Size& a, const TmaDescriptor::Size& b) {
  return a.parameter == b.parameter && a.constant == b.constant;
}

TEST(GpuCodeBytesTest, EveryFieldComesBack) {
  const GpuCode code = sample(), again = gpu_code_from_bytes(to_bytes(code));
  EXPECT_EQ(again.entry, code.entry);
  EXPECT_EQ(again.ptx, code.ptx);
  EXPECT_EQ(again.threads, code.threads);
  EXPECT_EQ(again.shared_bytes, code.shared_bytes);
  EXPECT_EQ(again.pdl, code.pdl);
  ASSERT_EQ(again.tma_descriptors.size(), code.tma_descriptors.size());
  for (size_t i = 0; i < code.tma_descriptors.size(); ++i) {
    const TmaDescriptor &a = again.tma_descriptors[i], &b = code.tma_descriptors[i];
    EXPECT_EQ(a.buffer, b.buffer);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_TRUE(equal(a.rows, b.rows) && equal(a.columns, b.columns) && equal(a.stride, b.stride));
    EXPECT_EQ(a.box_rows, b.box_rows);
    EXPECT_EQ(a.box_columns, b.box_columns);
    EXPECT_EQ(a.groups, b.groups);
    EXPECT_EQ(a.swizzled, b.swizzled);
    EXPECT_EQ(a.tf32, b.tf32);
  }
}

TEST(GpuCodeBytesTest, EveryCutIsRefused) {
  GpuCode code = sample();
  code.ptx = "short";
  const std::string bytes = to_bytes(code);
  const size_t descriptor =
      (bytes.size() - to_bytes({"kernel_0", "short", 384, 0, {}, true}).size()) / 2;
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A list of TMA descriptors has no length of its own: the file's is checked.
    if (size == bytes.size() - descriptor || size == bytes.size() - 2 * descriptor) continue;
    EXPECT_THROW(gpu_code_from_bytes(std::string_view(bytes).substr(0, size)), UserError) << size;
  }
  EXPECT_THROW(gpu_code_from_bytes(bytes + "x"), UserError);
}

TEST(GpuCodeBytesTest, ALengthBeyondTheBytesIsRefusedBeforeAnythingIsTaken) {
  ByteWriter writer;
  writer.number(uint64_t{1} << 62);
  writer.bytes("kernel");
  EXPECT_THROW(gpu_code_from_bytes(writer.take()), UserError);
}

TEST(GpuCodeBytesTest, ValuesThatNoKernelHasAreRefused) {
  for (const auto change :
       {+[](GpuCode& c) { c.entry.clear(); }, +[](GpuCode& c) { c.ptx.clear(); },
        +[](GpuCode& c) { c.ptx[7] = '\0'; }, +[](GpuCode& c) { c.threads = 0; },
        +[](GpuCode& c) { c.threads = 2048; }, +[](GpuCode& c) { c.shared_bytes = -1; },
        +[](GpuCode& c) { c.tma_descriptors[0].buffer = -1; },
        +[](GpuCode& c) { c.tma_descriptors[0].rows.parameter = -2; },
        +[](GpuCode& c) { c.tma_descriptors[0].box_columns = 0; },
        +[](GpuCode& c) { c.tma_descriptors[0].dtype = DType::kString; },
        +[](GpuCode& c) { c.tma_descriptors[0].dtype = DType{200}; }}) {
    GpuCode code = sample();
    change(code);
    EXPECT_THROW(gpu_code_from_bytes(to_bytes(code)), UserError);
  }
}

TEST(GpuCodeBytesTest, DescriptorsFitTheParametersThatTheyName) {
  Kernel kernel;
  kernel.parameters.resize(5);
  EXPECT_TRUE(fits(sample(), kernel));
  kernel.parameters.resize(4);
  EXPECT_FALSE(fits(sample(), kernel));
  kernel.parameters.resize(2);
  EXPECT_FALSE(fits(sample(), kernel));
}

}  // namespace
}  // namespace tenon::codegen
