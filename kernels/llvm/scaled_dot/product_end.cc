#include "kernels/llvm/scaled_dot/product_end.h"

#include <bit>
#include <cmath>

#include <fmt/format.h>

namespace tenon::kernels {

using codegen::kNone;
using codegen::ValueId;

ProductEnd::ProductEnd(LaunchWriter& writer, const ir::Graph& graph, const DotSections& dots,
                       const Piece& piece, Lowered& lowered)
    : writer_(writer), b_(writer.builder), rows_(dots.first().problem.rows), piece_(piece) {
  const bool alone = dots.sections.size() == 1 && !dots.sections[0].is_paired();
  int number = 0;
  for (const DotSection& weights : dots.sections) {
    Section section{weights, {}};
    for (size_t i = 0; i < weights.parts.size(); ++i) {
      EpilogueRole role;
      if (!alone) role.suffix = fmt::format("_{}", number++);
      role.stores = i + 1 == weights.parts.size();
      if (i > 0) role.given = weights.parts[0].node.output(0);
      const int columns = piece.rows / static_cast<int>(weights.parts.size());
      section.parts.push_back(declare(graph, weights.parts[i], columns, std::move(role), lowered));
    }
    sections_.push_back(std::move(section));
  }
  writer.declare(rows_);
}

ProductEnd::Part ProductEnd::declare(const ir::Graph& graph, const DotPart& dot, int columns,
                                     EpilogueRole role, Lowered& lowered) {
  const ValueId scales =
      dot.layout.scales_accumulators
          ? writer_.buffer("scales" + role.suffix, DType::kF32, dot.column_scales)
          : kNone;
  return {dot, scales,
          Epilogue(writer_, graph, dot.node, dot.problem, {piece_.tokens, columns}, lowered,
                   std::move(role))};
}

void ProductEnd::begin() {
  for (Section& section : sections_) {
    for (Part& part : section.parts) part.epilogue.begin();
  }
}

void ProductEnd::ask(ValueId token, ValueId row) {
  // Which section the rows belong to, and the halves of a pair, are told apart at their end.
  if (sections_.size() > 1 || sections_[0].weights.is_paired()) return;
  const ValueId column = b_.sub(row, b_.index(sections_[0].weights.first_unit * kFragmentRows));
  sections_[0].parts[0].epilogue.ask(place(sections_[0], token, column));
}

void ProductEnd::emit(ValueId token, ValueId row, Tile accumulators) {
  emit_from(0, token, row, accumulators);
}

void ProductEnd::emit_from(size_t section, ValueId token, ValueId row, Tile accumulators) {
  if (section + 1 == sections_.size()) return finish(sections_[section], token, row, accumulators);
  const int64_t next = sections_[section + 1].weights.first_unit * kFragmentRows;
  b_.branch(
      b_.less(row, b_.index(next)),
      [&] {
        finish(sections_[section], token, row, accumulators);
        return std::vector<ValueId>{};
      },
      [&] {
        emit_from(section + 1, token, row, accumulators);
        return std::vector<ValueId>{};
      });
}

void ProductEnd::emit_pair(ValueId token, ValueId row, Tile gives, Tile takes) {
  finish_pair(sections_.front(), token, row, gives, takes);
}

void ProductEnd::finish(Section& section, ValueId token, ValueId row, Tile accumulators) {
  if (section.weights.is_paired()) {
    const Tile apart = pair_apart(accumulators);
    const std::vector<int> half = {piece_.tokens, piece_.rows / 2};
    const Tile gives = b_.slice(apart, {0, 0}, half);
    return finish_pair(section, token, row, gives, b_.slice(apart, {piece_.tokens, 0}, half));
  }
  Part& part = section.parts[0];
  const ValueId column = b_.sub(row, b_.index(section.weights.first_unit * kFragmentRows));
  const auto to = place(section, token, column);
  part.epilogue.emit(to, scaled(part, column, accumulators));
}

void ProductEnd::finish_pair(Section& section, ValueId token, ValueId row, Tile gives, Tile takes) {
  const ValueId first = b_.index(section.weights.first_unit * kFragmentRows);
  const ValueId column = b_.div({b_.sub(row, first), b_.index(2)});
  const Epilogue::Place at = place(section, token, column);
  Part &giver = section.parts[0], &taker = section.parts[1];
  const Tile given = giver.epilogue.result(at, scaled(giver, column, gives));
  taker.epilogue.emit(at, scaled(taker, column, takes), given);
}

Epilogue::Place ProductEnd::place(const Section& section, ValueId token, ValueId column) {
  Epilogue::Place at{token, column};
  if (ends_inside(section)) {
    at.columns_left = b_.sub(b_.index(section.weights.n()), column);
    // Whole pieces of the last unit may be past the end; of the last section there are none.
    if (!is_last(section)) at.columns_left = b_.max(b_.index(0), at.columns_left);
  }
  if (!mod(rows_, Dim(piece_.tile_tokens)).is(0)) {
    at.rows_left = b_.sub(writer_.index(rows_), token);
  }
  return at;
}

// Whether some rows of some piece of a section are past its end.
bool ProductEnd::ends_inside(const Section& section) const {
  return section.weights.rows() % (is_last(section) ? piece_.rows : kFragmentRows) != 0;
}

// Bit 3 of a row says which of the two it is: see FragmentRows.
Tile ProductEnd::pair_apart(Tile accumulators) {
  constexpr int kBit = 3;
  const int bits = std::countr_zero(static_cast<unsigned>(piece_.tokens * piece_.rows));
  std::vector<int64_t> order;
  for (int bit = 0; bit < bits; ++bit) {
    if (bit != kBit) order.push_back(bit);
  }
  order.push_back(kBit);
  return b_.permute(accumulators, std::move(order), {2 * piece_.tokens, piece_.rows / 2});
}

Tile ProductEnd::scaled(const Part& part, ValueId column, Tile accumulators) {
  const std::vector<int> shape = b_.type(accumulators).shape;
  const int exponent = part.dot.layout.exponent;
  if (exponent != 0) {
    accumulators =
        b_.mul(accumulators, b_.constant(DType::kF32, std::ldexp(1.0, -exponent), shape));
  }
  if (part.column_scales == kNone) return accumulators;
  const Tile factor = b_.load({part.column_scales, column}, {shape[1]});
  return b_.mul(accumulators, b_.broadcast(factor, shape));
}

}  // namespace tenon::kernels
