// Brings weights to the device once, through a small ring of pinned buffers: no second full copy on
// the host.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "kernels/device/stream.h"

namespace tenon::device {

class Uploader {
 public:
  // Writes bytes [first, first + out.size()) to `out`. Called for pieces in any order, from several
  // threads.
  using MakePiece = std::function<void(int64_t first, std::span<std::byte> out)>;

  static std::unique_ptr<Uploader> make(std::shared_ptr<Device> device);
  virtual ~Uploader() = default;
  // Makes the bytes right in the pinned buffers, in pieces of whole units. Returns when all are
  // made; the copies may still be on their way.
  virtual void upload(Address to, size_t bytes, const MakePiece& make, size_t unit = 1) = 0;
  // Bytes that are there: returns when they have been read.
  void upload(Address to, const void* from, size_t bytes);
  virtual void finish() = 0;  // all copies have arrived
};

}  // namespace tenon::device
