#include "kernels/running/written_sizes.h"

#include "base/error.h"
#include "tests/kernels/running/device_program.h"

namespace tenon::kernels {
namespace {

using device::Address;

// What a partition in front wrote: the rows of x.
class WrittenSizesTest : public DeviceExecutableTest {
 protected:
  // x [n, 32], copied; `rows` holds n.
  std::unique_ptr<Executable> behind(std::shared_ptr<WrittenSizes> written) {
    add_tma_copy();
    program_.inputs.push_back({"rows", Shape{1}, DType::kI64, std::vector<Dim>{n_}});
    return finish({.written_sizes = std::move(written)});
  }

  device::Buffer holding(int64_t rows) {
    device::Buffer buffer(device_, sizeof(rows), "sizes");
    device::Stream stream(device_);
    stream.copy(buffer.address(), reinterpret_cast<Address>(&rows), sizeof(rows));
    stream.synchronize();
    return buffer;
  }

  // A Run with ten rows.
  void run(Executable& executable, Address sizes) {
    device::Stream stream(device_);
    const device::Buffer x = rows_of(1.0f), y = rows_of(0.0f);
    ManyBuffers context(2, 10, stream);
    context.inputs = {x.address(), sizes};
    context.outputs = {y.address(), 0};
    context.dims[1] = {1};
    executable.run(context);
    stream.synchronize();
    EXPECT_EQ(read(y, 10)[0], 1.0f);
  }
};

TEST_F(WrittenSizesTest, WhatNobodyNotedIsReadFromTheDevice) {
  const auto executable = behind(nullptr);
  run(*executable, holding(10).address());
  EXPECT_THROW(run(*executable, holding(11).address()), UserError);
}

TEST_F(WrittenSizesTest, WhatIsNotedIsNotWaitedFor) {
  const auto written = std::make_shared<WrittenSizes>();
  const auto executable = behind(written);
  const device::Buffer noted = holding(-1), other = holding(10);  // as if the GPU were not done
  written->note("rows", noted.address(), std::vector<int64_t>{10});
  run(*executable, noted.address());
  run(*executable, other.address());
  written->note("rows", noted.address(), std::vector<int64_t>{9});
  EXPECT_THROW(run(*executable, noted.address()), UserError);
}

TEST(WrittenSizes, TheLastOnesOfANameAreKept) {
  WrittenSizes written;
  std::vector<int64_t> sizes(2);
  for (int64_t at = 1; at <= 40; ++at) written.note("a", static_cast<Address>(at), {{at, 2 * at}});
  written.note("a", static_cast<Address>(20), {{5, 6}});
  EXPECT_FALSE(written.find("a", static_cast<Address>(1), sizes));
  EXPECT_FALSE(written.find("b", static_cast<Address>(40), sizes));
  EXPECT_TRUE(written.find("a", static_cast<Address>(40), sizes));
  EXPECT_EQ(sizes, (std::vector<int64_t>{40, 80}));
  EXPECT_TRUE(written.find("a", static_cast<Address>(20), sizes));
  EXPECT_EQ(sizes, (std::vector<int64_t>{5, 6}));
  std::vector<int64_t> more(3);
  EXPECT_FALSE(written.find("a", static_cast<Address>(40), more));
}

}  // namespace
}  // namespace tenon::kernels
