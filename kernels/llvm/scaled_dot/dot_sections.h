// The weights of one product, or of several that run as one, as one row of packed units.
//
// A section is the units of one weight, or of two that share them: where the result of one product
// is an operand of the other's epilogue (act(gate) * up), their rows alternate inside the units
// (FragmentRows), and what has to meet is in the same thread. Sections begin with a whole unit.
#pragma once

#include <span>
#include <vector>

#include "kernels/llvm/scaled_dot/fragment_weight.h"

namespace tenon::kernels {

struct DotPart {
  ir::Node node;  // a ScaledDot
  ScaledDotProblem problem;
  FragmentLayout layout;  // as if it were alone
  BufferArgument column_scales = {};
};

struct DotSection {
  std::vector<DotPart> parts;  // one; or two: the second one takes the first one's result
  int64_t first_unit = 0;

  bool is_paired() const { return parts.size() == 2; }
  int64_t n() const { return parts[0].layout.n; }
  int64_t rows() const { return n() * static_cast<int64_t>(parts.size()); }  // of weights
  int64_t units() const { return (rows() + kFragmentRows - 1) / kFragmentRows; }
};

struct DotSections {
  Support support;
  std::vector<DotSection> sections;
  FragmentLayout layout;      // of all units; n ends with the last row of the last section
  BufferArgument sides = {};  // of all units, where they stand apart

  const DotPart& first() const { return sections[0].parts[0]; }
  bool is_pair() const { return sections.size() == 1 && sections[0].is_paired(); }
  bool has_bodies() const;  // something is computed with the accumulators before they are stored
};

// Of products that have the same `a` and constant weights: nodes and problems come in, layouts go
// out.
DotSections plan_sections(const ir::Graph& graph, std::vector<DotPart> parts,
                          Precision precision = Precision::kExact);
// The units of all sections; notes where the column scales are, and sides that stand apart.
BufferArgument pack_sections(const ir::Graph& graph, DotSections& dots, Lowered& lowered);

}  // namespace tenon::kernels
