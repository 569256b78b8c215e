// Scales and zero points of large blocks, which stand apart from the units of codes: they go from
// memory straight to the registers of the threads that dequantise, those of a stage one stage
// ahead.
#pragma once

#include "kernels/llvm/scaled_dot/fragment_weight.h"

namespace tenon::kernels {

class ApartSides {
 public:
  // Stages hold `units` steps of 64 k for each of `groups` of rows: the steps of a stage are dealt
  // to the groups in turns, and each group has the same rows.
  ApartSides(codegen::Builder& b, const FragmentLayout& layout, codegen::ValueId buffer, int units,
             int groups = 1);

  // Where the block's rows begin: with a warp's rows of a row unit.
  struct Rows {
    codegen::ValueId row_unit, warp;
  };
  // All blocks of stage number `step`.
  std::vector<Tile> load(const Rows& rows, codegen::ValueId step);
  // One block for all of K: the words of one stage are those of all.
  bool is_constant() const { return layout_.blocks() == 1; }
  // Those of one unit of a stage, among what was loaded for it.
  void place(std::span<const Tile> loaded, int unit, FragmentPlaces& places) const;

 private:
  using Side = FragmentLayout::Side;
  int steps_of_block() const { return static_cast<int>(layout_.block) / kFragmentDepth; }
  int units_of_load() const;  // that find all they need in one load
  int loads() const { return std::max(1, units_ / units_of_load()); }
  Tile offsets(const Side& side);
  codegen::ValueId first_block(codegen::ValueId step, int load);

  codegen::Builder& b_;
  const FragmentLayout& layout_;
  codegen::ValueId buffer_;
  int units_, groups_;
  Tile scale_at_ = codegen::kNone, zero_at_ = codegen::kNone;  // of every thread, from its block
};

}  // namespace tenon::kernels
