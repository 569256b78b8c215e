#include "kernels/running/weight_pool.h"

namespace tenon::kernels {

std::shared_ptr<device::Buffer> WeightPool::find(const device::Device& device,
                                                 const Digest& content, size_t bytes) const {
  const auto known = weights_.find({&device, content, bytes});
  return known == weights_.end() ? nullptr : known->second.lock();
}

void WeightPool::add(const device::Device& device, const Digest& content,
                     const std::shared_ptr<device::Buffer>& weight) {
  std::erase_if(weights_, [](const auto& known) { return known.second.expired(); });
  weights_[{&device, content, weight->bytes()}] = weight;
}

device::Buffer WeightPool::make(const std::shared_ptr<device::Device>& device, size_t bytes,
                                std::string_view purpose) const {
  if (memory_) return {memory_(bytes, purpose), bytes};
  return {device, bytes, purpose};
}

}  // namespace tenon::kernels
