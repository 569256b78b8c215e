// Reads and writes the elements of a loop's accesses.
#pragma once

#include <map>
#include <vector>

#include "kernels/llvm/loop/places.h"

namespace tenon::kernels {

class Elements {
 public:
  Elements(LaunchWriter& writer, const LoopProblem& problem, const LoopSchedule& schedule,
           Places& places)
      : writer_(writer),
        b_(writer.builder),
        problem_(problem),
        schedule_(schedule),
        places_(places) {}

  // One parameter per buffer; before all other code. Inputs alone where nothing is stored.
  void declare_buffers();
  void declare_inputs();

  // Codes of the elements: a scalar where no lane differs, else a tile. Where one of the access's
  // guards fails nothing is read and the code means nothing.
  Tile load(const tiling::Access& access);
  void store(size_t store, Tile codes);

  // The buffer of a store as room for another value of the same size (see Stash).
  Tile load_back(size_t store);
  void keep(size_t store, Tile numbers);

 private:
  DType dtype_of(ir::ValueId id) const { return problem_.body->value(id).dtype; }
  Tile load_mask(const tiling::Access& access);
  Tile load_guarded_scalar(const tiling::Access& access, Tile buffer, const Place& place);
  Tile load_tile(Tile buffer, const Place& place, Tile mask);
  Tile load_square(Tile buffer, const Place& place);
  const tiling::BlockTerm* small_block(const tiling::Access& access) const;
  Tile load_small_blocks(const tiling::Access& access, const tiling::BlockTerm& block, Tile buffer);
  Tile load_packed(const tiling::Access& access, Tile buffer, const Place& place, Tile mask);
  Tile unpack_bytes(Tile bytes, int bits);
  bool is_one_element(const Place& place, Tile codes) const;
  static Dim lane_stride(const Place& place);
  void store_tile(Tile buffer, const Place& place, Tile codes);
  void store_packed(Tile buffer, const Place& place, Tile codes, int bits);
  Tile shift_table(int bits);

  LaunchWriter& writer_;
  codegen::Builder& b_;
  const LoopProblem& problem_;
  const LoopSchedule& schedule_;
  Places& places_;
  std::map<ir::ValueId, Tile> buffers_;
  std::vector<Tile> store_buffers_;
};

}  // namespace tenon::kernels
