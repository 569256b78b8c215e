// Device (or pinned host) memory in a few large blocks, handed out in pieces. A piece freed on a
// stream is given to the same stream at once, and to others once the stream has got past the free.
#pragma once

#include <memory>
#include <mutex>

#include "kernels/device/stream.h"

namespace tenon::device {

struct ArenaStats {
  int64_t in_use = 0, reserved = 0, peak_in_use = 0, limit = 0;
  int64_t allocations = 0, blocks = 0, block_allocations = 0;
};

enum class MemoryKind { kDevice, kPinned };

// Whether somebody calls `forget` before a stream is destroyed. A foreign one, which another
// provider made, may be gone whenever its Run is over: its handle is not touched but in `forget`.
enum class StreamEnd { kAnnounced, kForeign };

class Arena {
 public:
  // `limit`: bytes that may be reserved in all; 0: as much as there is.
  static std::unique_ptr<Arena> make(std::shared_ptr<Device> device, MemoryKind kind,
                                     size_t limit = 0);
  virtual ~Arena() = default;

  // Throws OutOfMemory. `stream` may be null: the piece is then ready for everyone.
  virtual void* allocate(size_t bytes, StreamHandle stream = nullptr,
                         StreamEnd end = StreamEnd::kAnnounced) = 0;
  virtual void release(void* piece) noexcept = 0;
  // No more pieces are bound to this stream: it is about to be destroyed, or to leave our sight.
  virtual void forget(StreamHandle stream) noexcept = 0;
  virtual void shrink() = 0;  // gives back blocks that are wholly free
  virtual ArenaStats stats() const = 0;
};

}  // namespace tenon::device
