#include "kernels/running/shape_values.h"

#include "base/convert.h"

namespace tenon::kernels {

void ShapeValues::set(const Program& program, const ShapeInstance& instance) {
  constexpr size_t kAlignment = 16;
  bytes_.clear();
  offsets_.clear();
  for (size_t i = 0; i < program.shape_writes.size(); ++i) {
    const DType dtype = program.shape_writes[i].dtype;
    const std::vector<int64_t>& extents = instance.shape_writes[i];
    const size_t first = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    offsets_.push_back(first);
    bytes_.resize(first + storage_bytes(dtype, static_cast<int64_t>(extents.size())));
    store_extents(dtype, extents, bytes_.data() + first);
  }
  is_stale_ = !bytes_.empty();
}

void ShapeValues::allocate(const std::shared_ptr<device::Device>& device) {
  memory_ = device::Buffer(device, bytes_.size(), "sizes that a partition computes with");
}

void ShapeValues::send(device::Stream& stream) {
  if (!is_stale_) return;
  stream.copy(memory_.address(), reinterpret_cast<device::Address>(bytes_.data()), bytes_.size());
  is_stale_ = false;
}

}  // namespace tenon::kernels
