// Kernels that pack weights on a GPU: what unit_packer does on the host, from the same layout and
// the same rules, bit for bit. A task makes one unit, or the sides of one block where they stand
// apart.
//
// Sizes and strides are index parameters, so that all weights of a format share one kernel,
// whichever way they are stored.
#pragma once

#include <memory>
#include <vector>

#include "codegen/tile/ir.h"
#include "kernels/llvm/scaled_dot/fragment_weight.h"

namespace tenon::kernels {

// A weight as it is stored. Two of them share their units: see FragmentRows.
struct StoredPart {
  uint32_t flip = 0;  // as of flipped_bits
  // kUndefined: none is packed. Of types of 8 bits or less a table says what each code is packed
  // as.
  DType scale = DType::kUndefined, zero = DType::kUndefined;

  static bool has_table(DType type) { return type != DType::kUndefined && bit_width(type) <= 8; }
};

struct PackTask {
  FragmentLayout layout;  // its sizes do not matter
  std::vector<StoredPart> parts;
  bool only_sides = false;

  bool has_codes() const { return !only_sides; }
  bool has_sides() const { return only_sides || !layout.sides_apart; }
  int words() const { return only_sides ? layout.side_words() : layout.unit_words(); }
};

// Buffers: of each part its codes, its scales and their table, its zero points and theirs, as far
// as they are; then what is made. Indices: rows of a part, K, tasks of a row of units, and k per
// scale where there are sides; then of each part the strides (column, k) of codes, scales and zero
// points, as far as they are. Equal tasks of this process share one.
std::shared_ptr<const codegen::Kernel> pack_kernel(const PackTask& task);

// Whether there is such a kernel, for scales and zero points stored as they are.
Support can_pack(const PackTask& task);

}  // namespace tenon::kernels
