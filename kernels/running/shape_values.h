// Values that follow from the shapes of a partition's inputs, in a GPU's memory: set when those
// change, sent before the next launch.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "kernels/running/program.h"
#include "kernels/running/shape_instance.h"

namespace tenon::kernels {

class ShapeValues {
 public:
  void set(const Program& program, const ShapeInstance& instance);
  // Where they do not fit their memory, nothing may read that any more before it is allocated anew.
  bool fits() const { return bytes_.size() <= memory_.bytes(); }
  void allocate(const std::shared_ptr<device::Device>& device);
  // Nothing where they were sent since they were set.
  void send(device::Stream& stream);

  size_t size() const { return offsets_.size(); }  // one for each of Program::shape_writes
  device::Address address(size_t write) const { return memory_.address() + offsets_[write]; }

 private:
  std::vector<std::byte> bytes_;
  std::vector<size_t> offsets_;
  device::Buffer memory_;
  bool is_stale_ = false;
};

}  // namespace tenon::kernels
