#include "graph_partitioner/passes/fold/quantize.h"

#include <algorithm>
#include <array>

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

}  // namespace tenon::folding
