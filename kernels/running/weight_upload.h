// Constants on their way to a device, several at once: made by the host right in the pinned buffers
// of the upload, or sent as the model has them to a staging area, where pack kernels read them.
//
// Copies and kernels are on one stream, so that the next ones may use the same area, and nobody on
// the host waits for a kernel.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device/uploader.h"
#include "kernels/running/pack_kernels.h"

namespace tenon::kernels {

class WeightUpload {
 public:
  // `bytes`: about as many as will come.
  WeightUpload(std::shared_ptr<device::Device> device, size_t bytes);
  // Makes the area, before anything is packed: as many bytes as the largest piece has, or more.
  // False where there is no memory for it.
  bool reserve(size_t bytes);
  // What the area must hold of a constant at once.
  static size_t staged_bytes(const DevicePacking::Piece& piece);
  static constexpr size_t kBatchBytes = size_t{128} << 20;

  void add(device::Address to, size_t bytes, const PackPiece& make, size_t unit);
  void add(device::Address to, const DevicePacking& packing, const PackKernels& kernels);
  bool is_full() const { return queued_ >= kBatchBytes; }
  void send();    // what was added; returns when it has been read
  void finish();  // all is there

 private:
  struct Packing {
    const device::LoadedKernel* kernel;
    int64_t tasks;
    std::vector<uint64_t> arguments;
  };
  std::shared_ptr<device::Device> device_;
  std::unique_ptr<device::Uploader> uploader_;
  device::Buffer staging_;
  size_t staged_ = 0, queued_ = 0;  // bytes of the area, and in all, since the last send()
  std::vector<device::Uploader::Transfer> transfers_;
  std::vector<Packing> packings_;
};

}  // namespace tenon::kernels
