// The kernel of PeerSum, as PTX: one rank's part of an all-reduce in a single exchange.
//
// A thread brings 16 bytes. It stores them into every other rank's memory, each 4 bytes with the
// number of the exchange beside them in one store of 8, polls its own memory until all ranks' have
// that number, and adds up in f32, in the order of ranks: the same bits everywhere. Nobody waits
// for anything but data. A CTA counts its own exchanges and alternates between two places: a rank
// that is one ahead has read what it overwrites next.
//
// Parameters, 8 bytes each: in, out, how many 16 bytes, counters (one u32 per CTA), a word of the
// host that ends all waits, then the memory of every rank.
#pragma once

#include "base/dtype.h"
#include "kernels/device/device.h"

namespace tenon::distributed {

struct PeerSumKernel {
  DType dtype{};  // f16, bf16, f32
  int rank = 0, ranks = 0;
  int compute_major = 0;  // of the GPU; from 9 on launches overlap (PDL)
  // Lets the next launch begin while this one waits for other ranks. Not where ranks share a GPU:
  // what begins there could keep the others from running.
  bool launches_dependents = false;

  static constexpr int kThreads = 256;
  static constexpr int64_t kBytesPerCta = kThreads * 16;
  // Of a rank's memory, for so many CTAs.
  static size_t memory_bytes(int ranks, int ctas);

  codegen::GpuCode code() const;
};

}  // namespace tenon::distributed
