#include "kernels/running/tma_descriptors.h"

#include <algorithm>

#include <fmt/format.h>

namespace tenon::kernels {
namespace {

using codegen::TmaDescriptor;
using device::MappedMatrix;
using device::TensorMap;

int64_t number(const TmaDescriptor::Size& size, std::span<const uint64_t> arguments) {
  return size.parameter < 0 ? size.constant : static_cast<int64_t>(arguments[size.parameter]);
}

MappedMatrix matrix_of(const TmaDescriptor& described, std::span<const uint64_t> arguments) {
  return {arguments[described.buffer],
          bit_width(described.dtype) / 8,
          number(described.rows, arguments),
          number(described.columns, arguments),
          number(described.stride, arguments),
          described.box_rows,
          described.box_columns,
          described.groups,
          described.swizzled,
          described.tf32};
}

}  // namespace

std::span<const TensorMap> TmaDescriptors::encode(device::Device& device, const std::string& node,
                                                  std::span<const uint64_t> arguments) {
  for (size_t i = 0; i < kept_.size(); ++i) {
    descriptors_[i] = find(kept_[i], matrix_of(*kept_[i].described, arguments), device, node);
  }
  return descriptors_;
}

const TensorMap& TmaDescriptors::find(Kept& kept, const MappedMatrix& matrix,
                                      device::Device& device, const std::string& node) {
  static constexpr TensorMap kNothing{};
  if (matrix.rows == 0) return kNothing;  // of which nothing is fetched
  const auto known = std::ranges::find(kept.encoded, matrix, &Encoded::matrix);
  if (known != kept.encoded.end()) return known->descriptor;
  const TensorMap descriptor =
      device::encode_tensor_map(device, matrix, fmt::format("node '{}': an operand", node));
  Encoded& place = kept.encoded[kept.next++ % kKept];
  place = {matrix, descriptor};
  return place.descriptor;
}

}  // namespace tenon::kernels
