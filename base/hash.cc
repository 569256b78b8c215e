#include "base/hash.h"

#include <cstring>

namespace tenon {
namespace {

constexpr HashState kInitialState{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

}  // namespace

Digest sha256(std::span<const std::byte> bytes) {
  const AbsorbBlocks by_instructions = absorb_by_instructions();
  return sha256(bytes, by_instructions != nullptr ? by_instructions : absorb_plain);
}

Digest sha256(std::span<const std::byte> bytes, AbsorbBlocks absorb) {
  HashState state = kInitialState;
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t whole = bytes.size() / kHashBlockBytes * kHashBlockBytes;
  absorb(state, data, whole / kHashBlockBytes);

  // What is left, a 1 bit, zeros, and the length in bits: one block or two.
  std::array<uint8_t, 2 * kHashBlockBytes> tail{};
  const size_t rest = bytes.size() - whole;
  if (rest > 0) std::memcpy(tail.data(), data + whole, rest);
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
