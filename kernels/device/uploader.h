// Brings weights to the device once, through a small ring of buffers, pinned ones where much is
// uploaded: no second full copy on the host.
#pragma once

#include <cstdint>
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

  // `bytes`: about as many as will be uploaded. Pinning memory takes longer than a small upload,
  // which is done without.
  static std::unique_ptr<Uploader> make(std::shared_ptr<Device> device, size_t bytes = SIZE_MAX);
  virtual ~Uploader() = default;

  struct Transfer {
    Address to = 0;
    size_t bytes = 0;
    MakePiece make;
    size_t unit = 1;
  };
  // Makes the bytes right in the buffers, in pieces of whole units, those of all transfers
  // side by side. Returns when all are made; the copies may still be on their way.
  virtual void upload(std::span<const Transfer> transfers) = 0;
  void upload(Address to, size_t bytes, const MakePiece& make, size_t unit = 1);
  // Bytes that are there: returns when they have been read.
  void upload(Address to, const void* from, size_t bytes);
  // Runs behind all copies so far, and before those to come.
  virtual void launch(const LoadedKernel& kernel, int64_t tasks,
                      std::span<const uint64_t> arguments) = 0;
  virtual void finish() = 0;  // all copies have arrived, and all launches have ended
};

}  // namespace tenon::device
