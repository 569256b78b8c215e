#include "kernels/tuner/redzones.h"

#include <algorithm>
#include <span>

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
  struct Zone {
    std::shared_ptr<Piece> piece;
    bool is_behind = false;
    device::Address from = 0;
    size_t bytes = 0, offset = 0;  // of what the host reads
  };
  std::vector<Zone> zones;
  size_t read = 0;
  const auto add = [&](Zone zone) {
    zone.offset = read;
    read += zone.bytes;
    zones.push_back(std::move(zone));
  };
  for (const auto& each : pieces_) {
    const auto piece = each.lock();
    if (piece == nullptr) continue;
    add({piece, false, piece->buffer.address(), kZone});
    add({piece, true, piece->end(), piece->behind()});
  }
  std::vector<unsigned char> bytes(read);
  device::Stream stream(device_);
  for (const Zone& zone : zones) {
    stream.copy(reinterpret_cast<device::Address>(bytes.data() + zone.offset), zone.from,
                zone.bytes);
  }
  stream.synchronize();
  std::string first;
  for (const Zone& zone : zones) {
    const auto written = std::ranges::count_if(std::span(bytes).subspan(zone.offset, zone.bytes),
                                               [](unsigned char byte) { return byte != kGuard; });
    if (written == 0) continue;
    stream.fill(zone.from, kGuard, zone.bytes);  // the next one is not blamed for it
    if (!first.empty()) continue;
    first = fmt::format("it wrote {} bytes {} {}", written, zone.is_behind ? "behind" : "before",
                        zone.piece->name);
  }
  stream.synchronize();
  return first;
}

}  // namespace tenon::kernels
