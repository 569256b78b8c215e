// The part of SHA-256 that takes the time: whole blocks into its state, by the instructions that
// processors have for it, or without them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tenon {

using HashState = std::array<uint32_t, 8>;
inline constexpr size_t kHashBlockBytes = 64;

// `count` blocks from `blocks` on.
using AbsorbBlocks = void (*)(HashState& state, const uint8_t* blocks, size_t count);
// Of two messages at once: each round waits for the one before, and the other message's fills the
// time.
using AbsorbPairs = void (*)(std::array<HashState, 2>& states,
                             const std::array<const uint8_t*, 2>& blocks, size_t count);

void absorb_plain(HashState& state, const uint8_t* blocks, size_t count);
// Null where this processor has no instructions for it, or we do not know them.
AbsorbBlocks absorb_by_instructions();
AbsorbPairs absorb_pairs_by_instructions();

}  // namespace tenon
