#include "kernels/tuner/redzones.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/device/stream.h"

namespace tenon::kernels {
namespace {

constexpr size_t kZone = 16 << 10;
constexpr unsigned char kGuard = 0xa5, kPoison = 0xff;

}  // namespace

struct Redzones::Piece {
  device::Buffer buffer;
  size_t bytes = 0;
  std::string name;

  device::Address begin() const { return buffer.address() + kZone; }
  device::Address end() const { return begin() + bytes; }
  size_t behind() const { return buffer.bytes() - kZone - bytes; }
};

std::shared_ptr<void> Redzones::make(size_t bytes, std::string name) {
  auto piece = std::make_shared<Piece>();
  piece->buffer = device::Buffer(device_, bytes + 2 * kZone, name);
  piece->bytes = bytes;
  piece->name = std::move(name);
  device::Stream stream(device_);
  stream.fill(piece->buffer.address(), kGuard, kZone);
  if (bytes > 0) stream.fill(piece->begin(), kPoison, bytes);
  stream.fill(piece->end(), kGuard, piece->behind());
  stream.synchronize();
  std::erase_if(pieces_, [](const auto& each) { return each.expired(); });
  pieces_.push_back(piece);
  void* const memory = reinterpret_cast<void*>(piece->begin());
  return {std::move(piece), memory};
}

std::string Redzones::find_damage() {
  device::Stream stream(device_);
  std::vector<unsigned char> zone(kZone);
  const auto damaged = [&](device::Address from, size_t bytes) {
    zone.resize(bytes);
    stream.copy(reinterpret_cast<device::Address>(zone.data()), from, bytes);
    stream.synchronize();
    return std::ranges::count_if(zone, [](unsigned char byte) { return byte != kGuard; });
  };
  for (const auto& each : pieces_) {
    const auto piece = each.lock();
    if (piece == nullptr) continue;
    const auto before = damaged(piece->buffer.address(), kZone);
    const auto behind = damaged(piece->end(), piece->behind());
    if (before + behind == 0) continue;
    return fmt::format("it wrote {} bytes {} {}", before + behind, before > 0 ? "before" : "behind",
                       piece->name);
  }
  return "";
}

}  // namespace tenon::kernels
