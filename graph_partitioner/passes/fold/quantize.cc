#include "graph_partitioner/passes/fold/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/convert.h"
#include "base/thread_pool.h"

namespace tenon::folding {
namespace {

// ONNX's numbers of element types that attributes name.
DType element_type(int64_t onnx_number) {
  constexpr auto kTypes = std::to_array<std::pair<int64_t, DType>>(
      {{1, DType::kF32}, {10, DType::kF16}, {11, DType::kF64}, {16, DType::kBF16}});
  for (const auto& [number, type] : kTypes) {
    if (number == onnx_number) return type;
  }
  return DType::kUndefined;
}

// Where an element's scale stands: one for all, one for each index of an axis or each block of it.
class ScaleIndex {
 public:
  ScaleIndex(const std::vector<int64_t>& x, const std::vector<int64_t>& scale, int64_t axis,
             int64_t block)
      : one_(std::ranges::all_of(scale, [](int64_t dim) { return dim == 1; }) && block == 0) {
    if (one_ || axis < 0 || axis >= static_cast<int64_t>(x.size())) return;
    size_ = x[axis];
    block_ = block > 0 ? block : 1;
    blocks_ = (size_ + block_ - 1) / block_;
    for (size_t i = axis + 1; i < x.size(); ++i) inner_ *= x[i];
    std::vector<int64_t> expected = {size_};
    if (block > 0) {
      expected = x;
      expected[axis] = blocks_;
    }
    per_axis_ = block == 0;
    fits_ = scale == expected;
  }

  bool fits() const { return one_ || fits_; }
  int64_t operator()(int64_t element) const {
    if (one_) return 0;
    const int64_t at = element / inner_ % size_;
    if (per_axis_) return at;
    return (element / (inner_ * size_) * blocks_ + at / block_) * inner_ + element % inner_;
  }

 private:
  bool one_, fits_ = false, per_axis_ = false;
  int64_t size_ = 1, block_ = 1, blocks_ = 1, inner_ = 1;
};

// In chunks of whole bytes, also of 4-bit codes in blocks of an odd number.
template <typename Visit>
void for_each_block(int64_t blocks, const Visit& visit) {
  constexpr int64_t kChunk = 1 << 12;
  parallel_for_each((blocks + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min(blocks, (chunk + 1) * kChunk);
    for (int64_t at = chunk * kChunk; at < end; ++at) visit(at);
  });
}

// NaN is larger than any number.
float larger(float a, float b) { return a >= b || std::isnan(a) ? a : b; }

std::vector<float> largest_of_blocks(const ir::Tensor& x, int64_t block) {
  std::vector<float> largest(static_cast<size_t>(x.elements() / block));
  for_each_block(x.elements() / block, [&](int64_t at) {
    float& found = largest[static_cast<size_t>(at)];
    for (int64_t i = at * block; i < (at + 1) * block; ++i) {
      found = larger(found, static_cast<float>(std::fabs(load_element(x.dtype, x.data, i))));
    }
  });
  return largest;
}

float or_one(float scale) { return scale == 0 ? 1 : scale; }

}  // namespace

DType division_type(const ir::Node& node, DType x, DType scale) {
  const DType asked = element_type(node.integer("precision", 0));
  if (asked != DType::kUndefined) return asked;
  return x == scale || scale == DType::kF8E8M0 ? x : DType::kF32;
}

ir::TensorPtr quantize(const ir::Node& node, const ir::Tensor& x, const ir::Tensor& scale,
                       const ir::Tensor* zero_point, DType to) {
  const ScaleIndex index(x.dims, scale.dims, node.integer("axis", 1),
                         node.integer("block_size", 0));
  if (!index.fits() || (zero_point && zero_point->elements() != scale.elements())) return nullptr;
  const DType asked = division_type(node, x.dtype, scale.dtype);
  const DType division = is_floating(asked) ? asked : DType::kF32;
  const DType wide = division == DType::kF64 ? DType::kF64 : DType::kF32;
  const auto as = [](DType type, double value) { return decode(type, encode(type, value)); };
  const EncodeRule rule{node.integer("saturate", 1) != 0, RoundMode::kNearestEven};
  std::vector<std::byte> codes(storage_bytes(to, x.elements()));
  const auto quantize_one = [&](int64_t i) {
    const int64_t at = index(i);
    const double dividend = as(division, load_element(x.dtype, x.data, i));
    const double divisor = as(division, load_element(scale.dtype, scale.data, at));
    const double zero = zero_point ? load_element(zero_point->dtype, zero_point->data, at) : 0.0;
    const double ratio = as(division, as(wide, dividend / divisor));
    store_code(to, codes.data(), i, tenon::quantize(to, ratio, zero, rule));
  };
  constexpr int64_t kChunk = 1 << 16;  // whole bytes, also of 4-bit codes
  parallel_for_each((x.elements() + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min(x.elements(), (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) quantize_one(i);
  });
  return ir::Tensor::copy(to, x.dims, codes);
}

// Quotients are of float32, as Model Optimizer computes them.
std::optional<Nvfp4> quantize_nvfp4(const ir::Tensor& x, int64_t block) {
  if (block < 1 || x.dims.empty() || x.dims.back() % block != 0) return std::nullopt;
  const std::vector<float> peaks = largest_of_blocks(x, block);
  const float largest = std::accumulate(peaks.begin(), peaks.end(), 0.0F, larger);
  if (!std::isfinite(largest)) return std::nullopt;
  const float overall = or_one(largest / kNvfp4Largest);
  std::vector<int64_t> scale_dims = x.dims;
  scale_dims.back() /= block;
  const auto blocks = static_cast<int64_t>(peaks.size());
  std::vector<std::byte> codes(storage_bytes(DType::kF4E2M1, x.elements()));
  std::vector<std::byte> scales(storage_bytes(DType::kF8E4M3FN, blocks));
  for_each_block(blocks, [&](int64_t at) {
    const float wanted = or_one(peaks[static_cast<size_t>(at)] / (kE2m1Largest * overall));
    const uint64_t scale = encode(DType::kF8E4M3FN, std::max(wanted, kE4m3Smallest));
    store_code(DType::kF8E4M3FN, scales.data(), at, scale);
    const float step = static_cast<float>(decode(DType::kF8E4M3FN, scale)) * overall;
    for (int64_t i = at * block; i < (at + 1) * block; ++i) {
      const float ratio = static_cast<float>(load_element(x.dtype, x.data, i)) / step;
      store_code(DType::kF4E2M1, codes.data(), i, encode(DType::kF4E2M1, ratio));
    }
  });
  return Nvfp4{ir::Tensor::copy(DType::kF4E2M1, x.dims, codes),
               ir::Tensor::copy(DType::kF8E4M3FN, scale_dims, scales),
               ir::Tensor::of(DType::kF32, {}, {overall})};
}

}  // namespace tenon::folding
