#include "kernels/cudnn/block_scaled.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/cudnn/versions.h"

namespace tenon::cudnn {
namespace {

// The oldest that was asked, and named an engine.
constexpr int kOldestWithMxfp4 = 91900;

bool is_wide_fp8(DType dtype) { return dtype == DType::kF8E4M3FN || dtype == DType::kF8E5M2; }

Support takes_types(const BlockScaledDot& dot, int version) {
  const bool both_fp4 = dot.a_type == DType::kF4E2M1 && dot.b_type == DType::kF4E2M1;
  const bool both_fp8 = is_wide_fp8(dot.a_type) && is_wide_fp8(dot.b_type);
  if (both_fp4 && dot.scale_type == DType::kF8E4M3FN && dot.block == 16) return Support::yes();
  const bool is_mxfp4 = both_fp4 && dot.scale_type == DType::kF8E8M0 && dot.block == 32;
  if (is_mxfp4) {
    if (version >= kOldestWithMxfp4) return Support::yes();
    return Support::no(fmt::format("f4e2m1 with f8e8m0 scales needs cuDNN {}, and this is {}",
                                   version_text(kOldestWithMxfp4), version_text(version)));
  }
  const bool is_mxfp8 = both_fp8 && dot.scale_type == DType::kF8E8M0 && dot.block == 32;
  if (is_mxfp8 && (dot.a_type == DType::kF8E4M3FN || dot.b_type == DType::kF8E4M3FN)) {
    return Support::yes();
  }
  return Support::no(fmt::format(
      "cuDNN multiplies f4e2m1 in blocks of 16 with f8e4m3fn scales, and fp4 and fp8 in blocks of "
      "32 with f8e8m0 scales unless both are f8e5m2, not {} x {} in blocks of {} with {}",
      name(dot.a_type), name(dot.b_type), dot.block, name(dot.scale_type)));
}

}  // namespace

Support takes(const BlockScaledDot& dot, int version, int compute_major) {
  if (Support answer = block_scaled_dot(version, compute_major); !answer) return answer;
  if (Support answer = takes_types(dot, version); !answer) return answer;
  if (dot.has_factor && !honours_global_scale(version)) {
    return Support::no(
        fmt::format("cuDNN {} leaves out a factor of the whole", version_text(version)));
  }
  return dot.has_codes() ? block_scaled_results(version, compute_major) : Support::yes();
}

Graph BlockScaledDot::graph(const Sizes& sizes) const {
  const auto [batch, m, n, k] = sizes;
  const auto blocks = [&](int64_t elements) { return (elements + block - 1) / block; };
  const ScaleTiles a_tiles{m, blocks(k)}, b_tiles{n, blocks(k)};
  const auto side = static_cast<int32_t>(block);
  // As the rows of a matrix, or turned where the product reads columns.
  const auto rows = [&](DType dtype, int64_t count, int64_t width) {
    return Tensor{.dtype = dtype, .dims = {batch, count, width}};
  };
  const auto turned = [&](DType dtype, int64_t count, int64_t width) {
    return Tensor{.dtype = dtype,
                  .dims = {batch, width, count},
                  .given_strides = {checked_mul(count, width), 1, width}};
  };
  const auto in_tiles = [](Tensor tensor) {
    tensor.in_tiles = true;
    return tensor;
  };
  Graph made;
  const size_t a = made.add(rows(a_type, m, k));
  const size_t a_scales =
      made.add(in_tiles(rows(scale_type, a_tiles.padded_rows(), a_tiles.padded_blocks())));
  const size_t b = made.add(turned(b_type, n, k));
  const size_t b_scales =
      made.add(in_tiles(turned(scale_type, b_tiles.padded_rows(), b_tiles.padded_blocks())));
  std::optional<size_t> factor;
  if (has_factor) factor = made.add({.dtype = DType::kF32, .dims = {1, 1, 1}});
  const size_t y = made.add(rows(result, m, n));
  std::optional<size_t> y_scales;
  if (has_codes()) {
    const ScaleTiles tiles{m, blocks(n)};
    y_scales =
        made.add(in_tiles(rows(result_scale_type, tiles.padded_rows(), tiles.padded_blocks())));
  }
  const auto between = [&](Tensor tensor) {
    tensor.is_virtual = true;
    return made.add(std::move(tensor));
  };
  const size_t a_numbers = between(rows(DType::kF32, m, k));
  made.steps.emplace_back(DequantizeStep{a, a_scales, a_numbers, {1, side}});
  const size_t b_numbers = between(turned(DType::kF32, n, k));
  made.steps.emplace_back(DequantizeStep{b, b_scales, b_numbers, {side, 1}});
  const bool is_last = !factor && !y_scales;
  size_t last = is_last ? y : between(rows(DType::kF32, m, n));
  made.steps.emplace_back(MatmulStep{a_numbers, b_numbers, last});
  if (factor) {
    const size_t scaled = y_scales ? between(rows(DType::kF32, m, n)) : y;
    made.steps.emplace_back(PointwiseStep{kMultiply, last, factor, scaled});
    last = scaled;
  }
  if (y_scales) made.steps.emplace_back(QuantizeStep{last, y, *y_scales, side});
  return made;
}

int64_t ScaleTiles::offset(int64_t row, int64_t block) const {
  const int64_t tile = row / 128 * (padded_blocks() / 4) + block / 4;
  return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

std::vector<std::byte> ScaleTiles::from_rows(std::span<const std::byte> scales) const {
  if (static_cast<int64_t>(scales.size()) != rows * blocks) {
    throw InternalError("scales of another size than their tiles");
  }
  std::vector<std::byte> tiles(static_cast<size_t>(bytes()));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t block = 0; block < blocks; ++block) {
      tiles[offset(row, block)] = scales[row * blocks + block];
    }
  }
  return tiles;
}

}  // namespace tenon::cudnn
