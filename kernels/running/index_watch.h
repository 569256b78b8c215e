// On a GPU nobody waits for indices to be checked: kernels keep them inside their bounds, and a
// watch raises a flag in host memory where one was outside. The flag is read after the Run, or
// before the next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/stream.h"
#include "kernels/running/program.h"
#include "kernels/running/shape_instance.h"

namespace tenon::kernels {

// The kernels that watch, one per type of index that the program has.
class IndexWatch {
 public:
  IndexWatch(const Program& program, const codegen::GpuTarget& target, device::Device& device,
             DiskCache* cache);

  bool empty() const { return i32_ == nullptr && i64_ == nullptr; }
  // Raises the flag when an index of `check`, read at `indices`, is out of range. `after_all`: it
  // must not begin before everything enqueued so far has ended; returns whether that is true of the
  // next launch.
  bool enqueue(device::Stream& stream, const ShapeInstance::Check& check, device::Address indices,
               device::Address flag, bool after_all) const;

 private:
  std::shared_ptr<const device::LoadedKernel> i32_, i64_;
};

// Flags of one run state, one per launch.
class IndexFlags {
 public:
  IndexFlags() = default;
  IndexFlags(std::shared_ptr<device::Device> device, size_t launches);
  ~IndexFlags();
  IndexFlags(const IndexFlags&) = delete;
  IndexFlags& operator=(IndexFlags&& other) noexcept;

  device::Address address(size_t launch) const;
  // Throws UserError naming the first launch's node whose flag is up, and lowers all.
  void check(const Program& program);

 private:
  std::shared_ptr<device::Device> device_;
  int32_t* flags_ = nullptr;  // pinned
  size_t count_ = 0;
};

}  // namespace tenon::kernels
