#include "base/hash.h"

#include <cstring>

namespace tenon {
namespace {

constexpr HashState kInitialState{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

AbsorbBlocks fastest() {
  const AbsorbBlocks by_instructions = absorb_by_instructions();
  return by_instructions != nullptr ? by_instructions : absorb_plain;
}

const uint8_t* data_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

size_t whole_blocks(std::span<const std::byte> bytes) { return bytes.size() / kHashBlockBytes; }

// `state` has absorbed the whole blocks of `bytes`.
Digest finish(HashState state, std::span<const std::byte> bytes, AbsorbBlocks absorb) {
  const size_t whole = whole_blocks(bytes) * kHashBlockBytes;
  // What is left, a 1 bit, zeros, and the length in bits: one block or two.
  std::array<uint8_t, 2 * kHashBlockBytes> tail{};
  const size_t rest = bytes.size() - whole;
  if (rest > 0) std::memcpy(tail.data(), data_of(bytes) + whole, rest);
  tail[rest] = 0x80;
  const size_t tail_bytes = rest + 9 <= kHashBlockBytes ? kHashBlockBytes : 2 * kHashBlockBytes;
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (size_t i = 0; i < 8; ++i) tail[tail_bytes - 1 - i] = static_cast<uint8_t>(bits >> (8 * i));
  absorb(state, tail.data(), tail_bytes / kHashBlockBytes);

  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

}  // namespace

Digest sha256(std::span<const std::byte> bytes) { return sha256(bytes, fastest()); }

Digest sha256(std::span<const std::byte> bytes, AbsorbBlocks absorb) {
  HashState state = kInitialState;
  absorb(state, data_of(bytes), whole_blocks(bytes));
  return finish(state, bytes, absorb);
}

std::array<Digest, 2> sha256_pair(std::span<const std::byte> first,
                                  std::span<const std::byte> second) {
  const AbsorbPairs absorb = absorb_pairs_by_instructions();
  if (absorb == nullptr || first.size() != second.size()) return {sha256(first), sha256(second)};
  std::array<HashState, 2> states{kInitialState, kInitialState};
  absorb(states, {data_of(first), data_of(second)}, whole_blocks(first));
  return {finish(states[0], first, fastest()), finish(states[1], second, fastest())};
}

Digest sha256(std::string_view text) {
  return sha256(std::as_bytes(std::span(text.data(), text.size())));
}

std::string hex(const Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace tenon
