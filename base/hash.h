// SHA-256, the one content hash: kernels are told apart by it and files are checked with it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/hash_blocks.h"

namespace tenon {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::span<const std::byte> bytes);
// The same by these means: for tests.
Digest sha256(std::span<const std::byte> bytes, AbsorbBlocks absorb);
Digest sha256(std::string_view text);
// Of two messages of the same length, sooner than one after the other.
std::array<Digest, 2> sha256_pair(std::span<const std::byte> first,
                                  std::span<const std::byte> second);
std::string hex(const Digest& digest);

}  // namespace tenon
