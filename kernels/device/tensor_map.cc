#include "kernels/device/tensor_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

namespace tenon::device {
namespace {

// CUtensorMapDataType by the size of an element: bits are copied, whatever they mean.
struct ElementType {
  int bytes, type;
};
constexpr ElementType kElementTypes[] = {{1, 0}, {2, 1}, {4, 2}, {8, 4}};
constexpr int kTf32 = 11;  // unless they are rounded

// CUtensorMapSwizzle by the bytes of a box's row.
struct Swizzle {
  int row_bytes, mode;
};
constexpr Swizzle kSwizzles[] = {{32, 1}, {64, 2}, {128, 3}};

int element_type(const MappedMatrix& matrix) {
  if (matrix.tf32) return kTf32;
  for (const ElementType& entry : kElementTypes) {
    if (entry.bytes == matrix.element_bytes) return entry.type;
  }
  throw InternalError(
      fmt::format("a TMA descriptor of elements of {} bytes", matrix.element_bytes));
}

// Rows that are wider than what changes places are pieces of it, one behind the other.
constexpr int kPieceBytes = 128;
bool has_pieces(const MappedMatrix& matrix) {
  return matrix.swizzled && matrix.box_columns * matrix.element_bytes > kPieceBytes;
}

int swizzle(const MappedMatrix& matrix) {
  if (!matrix.swizzled) return 0;
  const int row_bytes = std::min(kPieceBytes, matrix.box_columns * matrix.element_bytes);
  for (const Swizzle& entry : kSwizzles) {
    if (entry.row_bytes == row_bytes) return entry.mode;
  }
  throw InternalError(fmt::format("a TMA descriptor with boxes of {} bytes a row", row_bytes));
}

// What the caller or the shapes brought and TMA does not take; empty: nothing.
std::string objection(const MappedMatrix& matrix) {
  // A descriptor takes sizes up to 2^32, but a copy's coordinates have a sign.
  constexpr int64_t kMostSize = std::numeric_limits<int32_t>::max();
  constexpr int64_t kAlignment = 16, kMostStride = int64_t{1} << 40;
  const int64_t stride = matrix.stride * matrix.element_bytes;
  if (matrix.base % kAlignment != 0) {
    return fmt::format(
        "begins at {:#x}, and must begin at a multiple of {} bytes: bind a buffer that does",
        matrix.base, kAlignment);
  }
  if (stride % kAlignment != 0 || stride >= kMostStride) {
    return fmt::format("has rows {} bytes apart, and that must be a multiple of {} below 2^40",
                       stride, kAlignment);
  }
  if (matrix.rows <= 0 || matrix.columns <= 0 || matrix.rows > kMostSize ||
      matrix.columns > kMostSize) {
    return fmt::format("has {} x {} elements; each size must be from 1 to 2^31-1", matrix.rows,
                       matrix.columns);
  }
  if ((matrix.groups > 0 || has_pieces(matrix)) && matrix.columns % matrix.box_columns != 0) {
    return fmt::format("has rows of {} elements, and groups of boxes need a multiple of {}",
                       matrix.columns, matrix.box_columns);
  }
  return {};
}

}  // namespace

Support supports_tma(const Driver& driver) {
  if (driver.encode_tensor_map != nullptr) return Support::yes();
  return Support::no(
      "the NVIDIA driver has no function cuTensorMapEncodeTiled, with which kernels for this GPU "
      "read their operands: update it");
}

TensorMap encode_tensor_map(Device& device, const MappedMatrix& matrix, std::string_view what) {
  // TMA loads read 4.24 TB/s of an H200 where misses of the second cache level are promoted to 256
  // bytes, and 4.5 to 4.58, as bulk loads do, where they are not.
  constexpr int kNotInterleaved = 0, kNotPromoted = 0, kZerosOutside = 0;
  if (const Support support = supports_tma(device.driver()); !support) {
    throw UserError(support.reason);
  }
  if (const std::string problem = objection(matrix); !problem.empty()) {
    throw UserError(fmt::format("{} {}", what, problem));
  }
  const auto size = static_cast<uint64_t>(matrix.element_bytes);
  const auto width = static_cast<uint64_t>(matrix.box_columns);
  const auto columns = static_cast<uint64_t>(matrix.columns);
  // The third dimension: boxes side by side.
  const bool grouped = matrix.groups > 0, pieces = has_pieces(matrix);
  std::array<uint64_t, 3> sizes{grouped ? width : columns, static_cast<uint64_t>(matrix.rows),
                                columns / width};
  std::array<uint64_t, 2> strides{static_cast<uint64_t>(matrix.stride) * size, width * size};
  std::array<uint32_t, 3> box{static_cast<uint32_t>(matrix.box_columns),
                              static_cast<uint32_t>(matrix.box_rows),
                              static_cast<uint32_t>(matrix.groups)};
  if (pieces) {  // of a row before those of the next
    const uint64_t piece = kPieceBytes / size;
    sizes = {piece, columns / piece, static_cast<uint64_t>(matrix.rows)};
    strides = {kPieceBytes, static_cast<uint64_t>(matrix.stride) * size};
    box = {static_cast<uint32_t>(piece), static_cast<uint32_t>(width / piece),
           static_cast<uint32_t>(matrix.box_rows)};
  }
  constexpr std::array<uint32_t, 3> kSteps{1, 1, 1};
  TensorMap descriptor;
  device.make_current();
  const Result result = device.driver().encode_tensor_map(
      &descriptor, element_type(matrix), grouped || pieces ? 3 : 2,
      reinterpret_cast<void*>(matrix.base), sizes.data(), strides.data(), box.data(), kSteps.data(),
      kNotInterleaved, swizzle(matrix), kNotPromoted, kZerosOutside);
  if (result != kSuccess) {
    device.check(result,
                 fmt::format("encode the TMA descriptor of {} ({} x {}, boxes of {} x {})", what,
                             matrix.rows, matrix.columns, matrix.box_rows, matrix.box_columns));
  }
  return descriptor;
}

}  // namespace tenon::device
