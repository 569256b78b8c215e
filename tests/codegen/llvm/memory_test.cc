// Strides, extents and fills. Buffers end at a page that may not be touched.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "base/convert.h"
#include "base/dtype.h"
#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

// Bytes right before a page without access: reading or writing past them kills the test.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    pages_ = (bytes + page_ - 1) / page_ + 1;
    void* memory =
        mmap(nullptr, pages_ * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    base_ = static_cast<std::byte*>(memory);
    mprotect(base_ + (pages_ - 1) * page_, page_, PROT_NONE);
    data_ = base_ + (pages_ - 1) * page_ - bytes;
  }
  ~Guarded() { munmap(base_, pages_ * page_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  size_t page_, pages_ = 0;
  std::byte *base_ = nullptr, *data_ = nullptr;
};

constexpr DType kStored[] = {DType::kBool, DType::kI8,   DType::kU16, DType::kI32, DType::kU64,
                             DType::kF16,  DType::kBF16, DType::kF32, DType::kF64};

TEST(MemoryTest, ExtentsTouchNothingPastThem) {
  constexpr int kLanes = 21;
  for (const HostTarget& target : runnable_targets()) {
    for (DType dtype : kStored) {
      Builder b("copy");
      ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype);
      ValueId read = b.index_parameter("read"), write = b.index_parameter("write");
      b.store({y, b.index(0), {}, {write}}, b.load({x, b.index(0), {}, {read}}, {kLanes}, 1));
      HostKernel kernel(b.finish(), target);
      for (int64_t extent : {-5, 0, 1, 2, 7, 8, 15, 16, 17, 20, 21, 99}) {
        int64_t count = std::clamp<int64_t>(extent, 0, kLanes);
        Guarded in(storage_bytes(dtype, count)), out(storage_bytes(dtype, count));
        for (int64_t i = 0; i < count; ++i) store_element(dtype, in.as<void>(), i, i % 2);
        kernel({in.as<void>(), out.as<void>()}, {extent, extent});
        EXPECT_EQ(std::memcmp(in.as<void>(), out.as<void>(), storage_bytes(dtype, count)), 0)
            << name(dtype) << " " << extent;
        // Lanes past the extent read as the fill.
        std::vector<uint64_t> whole(kLanes);
        kernel({in.as<void>(), whole.data()}, {extent, kLanes});
        for (int64_t i = 0; i < kLanes; ++i) {
          EXPECT_EQ(load_element(dtype, whole.data(), i), i < count ? i % 2 : 1)
              << name(dtype) << " " << extent << " " << i;
        }
      }
    }
  }
}

struct Layout {
  std::vector<int> shape;
  int64_t row_stride, column_stride;
};

// Rows, columns, transposed, repeated and contiguous; extents in both dimensions.
TEST(MemoryTest, StridedMatricesWithExtents) {
  const Layout layouts[] = {{{4, 8}, 8, 1}, {{4, 8}, 11, 1}, {{4, 8}, 1, 4},   {{4, 8}, 0, 1},
                            {{4, 8}, 3, 0}, {{6, 1}, 1, 1},  {{6, 1}, 5, 1},   {{5, 3}, 3, 1},
                            {{5, 3}, 4, 1}, {{7, 4}, 4, 1},  {{3, 24}, 24, 1}, {{3, 24}, 2, 3}};
  for (const Layout& layout : layouts) {
    int m = layout.shape[0], n = layout.shape[1];
    Builder b("matrix");
    ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32);
    ValueId rows = b.index_parameter("rows"), columns = b.index_parameter("columns");
    // Constant strides take other paths than those known at run time.
    ValueId dynamic = b.index_parameter("dynamic");
    ValueId row_stride = b.index(layout.row_stride);
    ValueId column_stride = b.index(layout.column_stride);
    ValueId constant =
        b.load({x, b.index(0), {row_stride, column_stride}, {rows, columns}}, {m, n}, -1);
    ValueId runtime = b.load({x,
                              b.index(0),
                              {b.mul(row_stride, dynamic), b.mul(column_stride, dynamic)},
                              {rows, columns}},
                             {m, n}, -1);
    b.store({y, b.index(0)}, constant);
    b.store({y, b.index(m * n)}, runtime);
    // Stored back transposed: a column at a time.
    b.store({y, b.index(2 * m * n), {b.index(1), b.index(m)}, {rows, columns}}, constant);
    HostKernel kernel(b.finish());
    std::vector<float> in(200);
    std::iota(in.begin(), in.end(), 0.0f);
    for (int64_t row_count : {0, 1, m - 1, m, m + 3}) {
      for (int64_t column_count : {0, 1, n - 1, n, n + 3}) {
        std::vector<float> out(3 * m * n, -7);
        kernel({in.data(), out.data()}, {row_count, column_count, 1});
        for (int i = 0; i < m; ++i) {
          for (int j = 0; j < n; ++j) {
            bool inside = i < row_count && j < column_count;
            auto at = static_cast<float>(i * layout.row_stride + j * layout.column_stride);
            float expected = inside ? at : -1;
            ASSERT_EQ(out[i * n + j], expected) << m << "x" << n << " " << i << " " << j;
            ASSERT_EQ(out[m * n + i * n + j], expected) << m << "x" << n << " " << i << " " << j;
            ASSERT_EQ(out[2 * m * n + j * m + i], inside ? expected : -7);
          }
        }
      }
    }
  }
}

TEST(MemoryTest, GatherAndScatterUnderMasks) {
  for (const HostTarget& target : runnable_targets()) {
    for (DType dtype : {DType::kU8, DType::kF32, DType::kF64, DType::kBF16}) {
      constexpr int kLanes = 13;
      Builder b("gather");
      ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype);
      ValueId where = b.buffer("where", DType::kI32);
      ValueId indices = b.load({where, b.index(0)}, {kLanes});
      ValueId mask = b.compare(Fn::kGreaterEqual, indices, b.integer_constant(DType::kI32, 0));
      ValueId found = b.gather(x, b.index(2), indices, mask, 5);
      b.store({y, b.index(0)}, found);
      b.scatter(y, b.index(kLanes), indices, found, mask);
      HostKernel kernel(b.finish(), target);
      std::vector<uint64_t> in(40), out(40);
      for (int i = 0; i < 40; ++i) store_element(dtype, in.data(), i, i);
      std::vector<int32_t> indices_data{3, -1, 0, 7, -100000, 9, 2, 1, -1, 12, 11, 5, -7};
      kernel({in.data(), out.data(), indices_data.data()});
      for (int i = 0; i < kLanes; ++i) {
        int at = indices_data[i];
        double expected = at < 0 ? 5 : at + 2;
        ASSERT_EQ(load_element(dtype, out.data(), i), expected) << name(dtype) << i;
        if (at >= 0) {
          ASSERT_EQ(load_element(dtype, out.data(), kLanes + at), expected);
        }
      }
    }
  }
}

// Every type: some move by instructions that gather and scatter, some one lane after the other.
TEST(MemoryTest, StridedLinesTouchNothingPastTheirExtent) {
  constexpr int kLanes = 21, kDistance = 3;
  for (const HostTarget& target : runnable_targets()) {
    for (DType dtype : kStored) {
      Builder b("strided");
      ValueId x = b.buffer("x", dtype), packed = b.buffer("packed", dtype);
      ValueId y = b.buffer("y", dtype);
      ValueId distance = b.index_parameter("distance"), extent = b.index_parameter("extent");
      ValueId line = b.load({x, b.index(0), {distance}, {extent}}, {kLanes}, 1);
      b.store({packed, b.index(0)}, line);
      b.store({y, b.index(0), {distance}, {extent}}, line);
      HostKernel kernel(b.finish(), target);
      for (int64_t asked : {-5, 0, 1, 7, 16, 17, 20, 21, 99}) {
        const int64_t count = std::clamp<int64_t>(asked, 0, kLanes);
        const int64_t elements = count == 0 ? 0 : (count - 1) * kDistance + 1;
        Guarded in(storage_bytes(dtype, elements)), out(storage_bytes(dtype, elements));
        for (int64_t i = 0; i < elements; ++i) {
          store_element(dtype, in.as<void>(), i, i % 2);
          store_element(dtype, out.as<void>(), i, 1);
        }
        std::vector<uint64_t> filled(kLanes);
        kernel({in.as<void>(), filled.data(), out.as<void>()}, {kDistance, asked});
        for (int64_t i = 0; i < kLanes; ++i) {
          const double expected = i < count ? i * kDistance % 2 : 1;
          EXPECT_EQ(load_element(dtype, filled.data(), i), expected) << name(dtype) << asked;
        }
        for (int64_t i = 0; i < elements; ++i) {
          EXPECT_EQ(load_element(dtype, out.as<void>(), i), i % kDistance == 0 ? i % 2 : 1)
              << name(dtype) << " " << asked << " " << i;
        }
      }
    }
  }
}

TEST(MemoryTest, GatherAndScatterOfAllLanes) {
  constexpr int kLanes = 45;
  for (const HostTarget& target : runnable_targets()) {
    for (DType dtype : {DType::kU8, DType::kF32, DType::kF64, DType::kBF16}) {
      Builder b("gather");
      ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype);
      ValueId where = b.buffer("where", DType::kI64);
      ValueId indices = b.load({where, b.index(0)}, {kLanes});
      ValueId found = b.gather(x, b.index(0), indices);
      b.scatter(y, b.index(0), indices, found);
      HostKernel kernel(b.finish(), target);
      std::vector<uint64_t> in(kLanes), out(kLanes);
      std::vector<int64_t> backwards(kLanes);
      for (int i = 0; i < kLanes; ++i) {
        store_element(dtype, in.data(), i, i);
        backwards[i] = kLanes - 1 - i;
      }
      kernel({in.data(), out.data(), backwards.data()});
      for (int i = 0; i < kLanes; ++i) {
        ASSERT_EQ(load_element(dtype, out.data(), i), i) << name(dtype);
      }
    }
  }
}

TEST(MemoryTest, ScratchBelongsToTheTask) {
  Builder b("scratch");
  ValueId y = b.buffer("y", DType::kI32);
  ValueId scratch = b.alloc(DType::kI32, 100);
  b.loop(b.index(0), b.index(96), b.index(16), {}, [&](ValueId i, std::span<const ValueId>) {
    ValueId start = b.from_index(b.add(i, b.task()), DType::kI32);
    b.store({scratch, i}, b.add(b.iota(DType::kI32, {16}, 0), start));
    return std::vector<ValueId>{};
  });
  ValueId backwards = b.load({scratch, b.index(95), {b.index(-1)}, {}}, {16});
  b.store({y, b.mul(b.task(), b.index(16))}, backwards);
  HostKernel kernel(b.finish());
  std::vector<int32_t> out(48);
  kernel({out.data()}, {}, 3);
  for (int i = 0; i < 48; ++i) EXPECT_EQ(out[i], 95 - i % 16 + i / 16);
}

// Buffers may overlap: a kernel in place reads what it has not yet written.
TEST(MemoryTest, RunsInPlace) {
  Builder b("in_place");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32);
  ValueId first = b.load({x, b.index(0)}, {16});
  b.store({y, b.index(0)}, b.add(first, b.constant(DType::kF32, 1)));
  ValueId again = b.load({x, b.index(0)}, {16});
  b.store({y, b.index(0)}, b.add(again, b.constant(DType::kF32, 1)));
  HostKernel kernel(b.finish());
  std::vector<float> data(16, 0);
  kernel({data.data(), data.data()});
  for (float value : data) EXPECT_EQ(value, 2);
}

}  // namespace
}  // namespace tenon::codegen
