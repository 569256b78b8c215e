// What a slice takes, beside the definition in wide integers: of axes on both sides of 2^31 and
// 2^32, known ahead or at Run only.
#include <limits>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon {
namespace {

__extension__ using Wide = __int128;

struct Taken {
  int64_t start, count;
};

// ONNX's definition; the runtime takes two ends for the end of the walk, in both directions.
Taken definition(int64_t start, int64_t end, int64_t step, int64_t dim) {
  const auto clamped = [&](int64_t index, Wide low, Wide high) {
    const Wide from_front = index < 0 ? Wide{index} + dim : Wide{index};
    return from_front < low ? low : from_front > high ? high : from_front;
  };
  const bool endless =
      end == std::numeric_limits<int32_t>::max() || end == std::numeric_limits<int64_t>::max();
  const Wide first = step > 0 ? clamped(start, 0, dim) : clamped(start, 0, dim - 1);
  Wide last = step > 0 ? clamped(end, 0, dim) : clamped(end, -1, dim - 1);
  if (endless) last = step > 0 ? dim : -1;
  const Wide way = step > 0 ? last - first : first - last;
  const Wide stride = step > 0 ? step : -step;
  const Wide count = way <= 0 ? 0 : (way + stride - 1) / stride;
  return {static_cast<int64_t>(first), static_cast<int64_t>(count)};
}

constexpr int64_t kInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kInt64 = std::numeric_limits<int64_t>::max();

// Around 0, the axis's end and the limits of 32 and 64 bits, from the front and from the back.
std::vector<int64_t> interesting(int64_t dim) {
  std::vector<int64_t> indices{kInt64, kInt64 - 1, -kInt64, -kInt64 - 1};
  for (const int64_t around : {int64_t{0}, dim, kInt32, int64_t{1} << 32}) {
    for (const int64_t off : {-4097, -1, 0, 1, 5}) {
      indices.push_back(around + off);
      indices.push_back(-around + off);
    }
  }
  return indices;
}

void check_axis(int64_t dim, int64_t step) {
  const Dim symbol = Dim::symbol("n");
  const auto sized = [&](const Dim& size) {
    return size.evaluate([&](std::string_view) { return dim; });
  };
  for (const int64_t start : interesting(dim)) {
    for (const int64_t end : interesting(dim)) {
      const Taken wanted = definition(start, end, step, dim);
      for (const Dim& axis : {Dim(dim), symbol}) {
        const auto extent = slice_extent(start, end, step, axis);
        ASSERT_TRUE(extent);
        const std::string what =
            fmt::format("[{}:{}:{}] of {} as {}", start, end, step, dim, axis.text());
        ASSERT_EQ(sized(extent->size), wanted.count) << what;
        if (wanted.count == 0) continue;
        ASSERT_EQ(sized(extent->start), wanted.start) << what;
      }
    }
  }
}

TEST(SliceExtent, IsTheDefinitionsWhateverTheAxisAndTheConstants) {
  constexpr int64_t kTwo31 = int64_t{1} << 31, kTwo32 = int64_t{1} << 32;
  for (const int64_t dim :
       {int64_t{7}, kTwo31 - 1, kTwo31 + 4099, kTwo32 + 4099, int64_t{1} << 40}) {
    for (const int64_t step : {int64_t{1}, int64_t{3}, int64_t{-1}, int64_t{-4096}}) {
      check_axis(dim, step);
    }
  }
}

// What exporters write for "all of it" and for "backwards" leaves the axis's own size.
TEST(SliceExtent, OfAWholeAxisIsItsSize) {
  const Dim n = Dim::symbol("n");
  for (const int64_t end : {kInt32, kInt64, kInt64 - 1}) {
    EXPECT_EQ(slice_extent(0, end, 1, n)->size.text(), "n") << end;
  }
  for (const int64_t end : {-kInt64, -kInt64 - 1, kInt64, kInt32}) {
    EXPECT_EQ(slice_extent(-1, end, -1, n)->size.text(), "n") << end;
  }
}

}  // namespace
}  // namespace tenon
