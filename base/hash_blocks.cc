#include "base/hash_blocks.h"

#include <bit>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tenon {
namespace {

// FIPS 180-4: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr std::array<uint32_t, 64> kRoundConstants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void absorb_block(HashState& state, const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
           uint32_t{block[4 * i + 2]} << 8 | uint32_t{block[4 * i + 3]};
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRoundConstants[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1;
    d = c, c = b, b = a, a = t1 + t2;
  }
  const HashState round{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) state[i] += round[i];
}

#if defined(__x86_64__)

// SHA-NI keeps the state as two vectors, (a b e f) and (c d g h), and does two rounds at once.
template <size_t lanes>
__attribute__((target("sha,sse4.1"))) void absorb_sha_ni(std::array<HashState, lanes>& states,
                                                         std::array<const uint8_t*, lanes> blocks,
                                                         size_t count) {
  const auto load = [](const void* from) __attribute__((target("sha,sse4.1"))) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  };
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i abef[lanes], cdgh[lanes];
  for (size_t l = 0; l < lanes; ++l) {
    const __m128i badc = _mm_shuffle_epi32(load(&states[l][0]), 0xb1);
    const __m128i hgfe = _mm_shuffle_epi32(load(&states[l][4]), 0x1b);
    abef[l] = _mm_alignr_epi8(badc, hgfe, 8);
    cdgh[l] = _mm_blend_epi16(hgfe, badc, 0xf0);
  }
  for (; count > 0; --count) {
    __m128i abef_before[lanes], cdgh_before[lanes], w[lanes][4];  // the last 16 words
    for (size_t l = 0; l < lanes; ++l) abef_before[l] = abef[l], cdgh_before[l] = cdgh[l];
#pragma GCC unroll 16
    for (int four = 0; four < 16; ++four) {
#pragma GCC unroll 2
      for (size_t l = 0; l < lanes; ++l) {
        __m128i& now = w[l][four % 4];
        if (four < 4) {
          now = _mm_shuffle_epi8(load(blocks[l] + 16 * four), big_endian);
        } else {
          const __m128i last = w[l][(four + 3) % 4];
          const __m128i seven_back = _mm_alignr_epi8(last, w[l][(four + 2) % 4], 4);
          now = _mm_sha256msg2_epu32(
              _mm_add_epi32(_mm_sha256msg1_epu32(now, w[l][(four + 1) % 4]), seven_back), last);
        }
        const __m128i keyed = _mm_add_epi32(now, load(&kRoundConstants[4 * four]));
        cdgh[l] = _mm_sha256rnds2_epu32(cdgh[l], abef[l], keyed);
        abef[l] = _mm_sha256rnds2_epu32(abef[l], cdgh[l], _mm_shuffle_epi32(keyed, 0x0e));
      }
    }
    for (size_t l = 0; l < lanes; ++l) {
      abef[l] = _mm_add_epi32(abef[l], abef_before[l]);
      cdgh[l] = _mm_add_epi32(cdgh[l], cdgh_before[l]);
      blocks[l] += kHashBlockBytes;
    }
  }
  for (size_t l = 0; l < lanes; ++l) {
    const __m128i feba = _mm_shuffle_epi32(abef[l], 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh[l], 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(&states[l][0]), _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(&states[l][4]), _mm_alignr_epi8(dchg, feba, 8));
  }
}

bool has_sha_ni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_SSE4_1) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}

#elif defined(__aarch64__)

#ifdef __clang__  // has these functions where the whole file is compiled for them: CMakeLists.txt
#define TENON_WITH_SHA2
#else
#define TENON_WITH_SHA2 __attribute__((target("arch=armv8-a+crypto")))
#endif

template <size_t lanes>
TENON_WITH_SHA2 void absorb_sha2(std::array<HashState, lanes>& states,
                                 std::array<const uint8_t*, lanes> blocks, size_t count) {
  uint32x4_t abcd[lanes], efgh[lanes];
  for (size_t l = 0; l < lanes; ++l) {
    abcd[l] = vld1q_u32(&states[l][0]);
    efgh[l] = vld1q_u32(&states[l][4]);
  }
  for (; count > 0; --count) {
    uint32x4_t abcd_before[lanes], efgh_before[lanes], w[lanes][4];  // the last 16 words
    for (size_t l = 0; l < lanes; ++l) abcd_before[l] = abcd[l], efgh_before[l] = efgh[l];
#pragma GCC unroll 16
    for (int four = 0; four < 16; ++four) {
#pragma GCC unroll 2
      for (size_t l = 0; l < lanes; ++l) {
        uint32x4_t& now = w[l][four % 4];
        if (four < 4) {
          now = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(blocks[l] + 16 * four)));
        } else {
          now = vsha256su1q_u32(vsha256su0q_u32(now, w[l][(four + 1) % 4]), w[l][(four + 2) % 4],
                                w[l][(four + 3) % 4]);
        }
        const uint32x4_t keyed = vaddq_u32(now, vld1q_u32(&kRoundConstants[4 * four]));
        const uint32x4_t before = abcd[l];
        abcd[l] = vsha256hq_u32(abcd[l], efgh[l], keyed);
        efgh[l] = vsha256h2q_u32(efgh[l], before, keyed);
      }
    }
    for (size_t l = 0; l < lanes; ++l) {
      abcd[l] = vaddq_u32(abcd[l], abcd_before[l]);
      efgh[l] = vaddq_u32(efgh[l], efgh_before[l]);
      blocks[l] += kHashBlockBytes;
    }
  }
  for (size_t l = 0; l < lanes; ++l) {
    vst1q_u32(&states[l][0], abcd[l]);
    vst1q_u32(&states[l][4], efgh[l]);
  }
}

#endif

}  // namespace

void absorb_plain(HashState& state, const uint8_t* blocks, size_t count) {
  for (; count > 0; --count, blocks += kHashBlockBytes) absorb_block(state, blocks);
}

namespace {

// One or two messages at once; null: no instructions.
template <size_t lanes>
using Absorb = void (*)(std::array<HashState, lanes>&, std::array<const uint8_t*, lanes>, size_t);

template <size_t lanes>
Absorb<lanes> by_instructions() {
#if defined(__x86_64__)
  static const bool has_them = has_sha_ni();
  return has_them ? absorb_sha_ni<lanes> : nullptr;
#elif defined(__aarch64__)
  static const bool has_them = (getauxval(AT_HWCAP) & HWCAP_SHA2) != 0;
  return has_them ? absorb_sha2<lanes> : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace

AbsorbBlocks absorb_by_instructions() {
  if (by_instructions<1>() == nullptr) return nullptr;
  return [](HashState& state, const uint8_t* blocks, size_t count) {
    std::array<HashState, 1> states{state};
    by_instructions<1>()(states, {blocks}, count);
    state = states[0];
  };
}

AbsorbPairs absorb_pairs_by_instructions() {
  if (by_instructions<2>() == nullptr) return nullptr;
  return [](std::array<HashState, 2>& states, const std::array<const uint8_t*, 2>& blocks,
            size_t count) { by_instructions<2>()(states, blocks, count); };
}

}  // namespace tenon
