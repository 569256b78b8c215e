// From accumulators to results: what every kernel of packed weights does at the end of a tile.
#pragma once

#include <vector>

#include "kernels/llvm/scaled_dot/dot_sections.h"
#include "kernels/llvm/scaled_dot/epilogue.h"

namespace tenon::kernels {

class ProductEnd {
 public:
  // Accumulators that are finished at a time, and how many tokens the whole tile has.
  struct Piece {
    int tokens, rows, tile_tokens;
  };
  ProductEnd(LaunchWriter& writer, const ir::Graph& graph, const DotSections& dots,
             const Piece& piece, Lowered& lowered);

  void begin();  // once, at the top of the kernel
  // Loads what the piece that is emitted next needs from memory, long before its accumulators are
  // there.
  void ask(codegen::ValueId token, codegen::ValueId row);
  // `accumulators` [tokens, rows]: those of token `token` and row `row` of the units, and following
  // ones. Rows of a piece are all of one section.
  void emit(codegen::ValueId token, codegen::ValueId row, Tile accumulators);
  // Where all products are one pair, and the accumulators of each are at hand: [tokens, rows / 2].
  void emit_pair(codegen::ValueId token, codegen::ValueId row, Tile gives, Tile takes);

 private:
  struct Part {
    const DotPart& dot;
    codegen::ValueId column_scales;
    Epilogue epilogue;
  };
  struct Section {
    const DotSection& weights;
    std::vector<Part> parts;
  };

  Part declare(const ir::Graph& graph, const DotPart& dot, int columns, EpilogueRole role,
               Lowered& lowered);
  void emit_from(size_t section, codegen::ValueId token, codegen::ValueId row, Tile accumulators);
  void finish(Section& section, codegen::ValueId token, codegen::ValueId row, Tile accumulators);
  void finish_pair(Section& section, codegen::ValueId token, codegen::ValueId row, Tile gives,
                   Tile takes);
  Epilogue::Place place(const Section& section, codegen::ValueId token, codegen::ValueId column);
  bool is_last(const Section& section) const { return &section == &sections_.back(); }
  bool ends_inside(const Section& section) const;
  // The accumulators of one of a pair, then those of the other: [2 tokens, rows / 2].
  Tile pair_apart(Tile accumulators);
  Tile scaled(const Part& part, codegen::ValueId column, Tile accumulators);

  LaunchWriter& writer_;
  codegen::Builder& b_;
  Dim rows_;  // of x
  Piece piece_;
  std::vector<Section> sections_;
};

}  // namespace tenon::kernels
