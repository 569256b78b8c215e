// Brings weights to the device once, through a small ring of pinned buffers: no second full copy on
// the host.
#pragma once

#include <functional>
#include <memory>

#include "kernels/device/stream.h"

namespace tenon::device {

class Uploader {
 public:
  static std::unique_ptr<Uploader> make(std::shared_ptr<Device> device);
  virtual ~Uploader() = default;
  // Returns when `from` has been read; the copy itself may still be on its way.
  virtual void upload(Address to, const void* from, size_t bytes) = 0;
  virtual void finish() = 0;  // all copies have arrived
};

}  // namespace tenon::device
