// How a GPU packs a constant itself: bytes of the model go there as they lie in the file, and
// launches of pack kernels make the constant of them. Plain data, like lowered.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codegen/tile/ir.h"

namespace tenon::kernels {

struct DevicePacking {
  // Bytes of the model, which are there while the graph lives, or a small table of its own.
  struct Source {
    std::span<const std::byte> bytes;
    std::shared_ptr<const std::byte[]> owned = {};
  };
  // One launch, which makes bytes that no other one touches, all of them.
  struct Piece {
    std::shared_ptr<const codegen::Kernel> kernel;
    std::vector<Source> sources;   // the kernel's buffers, but for the last: what it makes
    std::vector<int64_t> indices;  // the kernel's index parameters
    int64_t tasks = 0;
    size_t first_byte = 0;  // of the constant, where the last buffer begins
  };
  std::vector<Piece> pieces;  // none: the host packs

  static constexpr int kThreads = 256;  // of a CTA
};

}  // namespace tenon::kernels
