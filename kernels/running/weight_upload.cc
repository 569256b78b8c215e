#include "kernels/running/weight_upload.h"

#include <cstring>
#include <utility>

#include "base/file_pages.h"

namespace tenon::kernels {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// As the model has them; its pages are not needed soon.
PackPiece copy_of(const DevicePacking::Source& source) {
  const std::byte* from = source.bytes.data();
  return [from, is_file = source.owned == nullptr](int64_t first, std::span<std::byte> out) {
    std::memcpy(out.data(), from + first, out.size());
    if (is_file) release_file_pages({from + first, out.size()});
  };
}

}  // namespace

WeightUpload::WeightUpload(std::shared_ptr<device::Device> device, size_t bytes)
    : device_(std::move(device)), uploader_(device::Uploader::make(device_, bytes)) {}

bool WeightUpload::reserve(size_t bytes) {
  try {
    if (bytes > 0) staging_ = device::Buffer(device_, bytes, "packing weights");
  } catch (const device::OutOfMemory&) {
    return false;
  }
  return true;
}

size_t WeightUpload::staged_bytes(const DevicePacking::Piece& piece) {
  size_t bytes = 0;
  for (const DevicePacking::Source& source : piece.sources) bytes += aligned(source.bytes.size());
  return bytes;
}

void WeightUpload::add(device::Address to, size_t bytes, const PackPiece& make, size_t unit) {
  transfers_.push_back({to, bytes, make, unit});
  queued_ += bytes;
}

void WeightUpload::add(device::Address to, const DevicePacking& packing,
                       const PackKernels& kernels) {
  for (const DevicePacking::Piece& piece : packing.pieces) {
    if (staged_ + staged_bytes(piece) > staging_.bytes()) send();
    Packing launch{&kernels.loaded(*piece.kernel), piece.tasks, {}};
    for (const DevicePacking::Source& source : piece.sources) {
      const device::Address place = staging_.address() + staged_;
      add(place, source.bytes.size(), copy_of(source), 1);
      launch.arguments.push_back(place);
      staged_ += aligned(source.bytes.size());
    }
    launch.arguments.push_back(to + piece.first_byte);
    for (const int64_t index : piece.indices) {
      launch.arguments.push_back(static_cast<uint64_t>(index));
    }
    packings_.push_back(std::move(launch));
  }
}

void WeightUpload::send() {
  uploader_->upload(transfers_);
  for (const Packing& packing : packings_) {
    uploader_->launch(*packing.kernel, packing.tasks, packing.arguments);
  }
  transfers_.clear();
  packings_.clear();
  staged_ = queued_ = 0;
}

void WeightUpload::finish() {
  send();
  uploader_->finish();
}

}  // namespace tenon::kernels
