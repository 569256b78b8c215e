// How a layout goes through an operation.
#include <algorithm>

#include "codegen/layout_inference/constraints.h"
#include "codegen/moves.h"

namespace tenon::codegen {

namespace {

// A column [m] or [m,1], a row [n] or [1,n], under another shape.
bool keeps(const Layout& layout, const std::vector<int>& to) {
  int m = to.size() == 2 ? to[0] : 1, n = to.empty() ? 1 : to.back();
  if (layout.kind == Layout::Kind::kRows) {
    return to == std::vector{layout.rows} || (to.size() == 2 && m == layout.rows && n == 1);
  }
  if (layout.kind == Layout::Kind::kColumns) return m == 1 && n == layout.columns;
  return m == layout.rows && n == layout.columns && to.size() == 2;
}

// What a broadcast to this mma layout reads without moving anything.
std::optional<Layout> broadcast_source(const std::vector<int>& from, const Layout& to) {
  if (from == std::vector{to.rows, to.columns}) return to;
  if (from.size() == 2 && from[0] == to.rows && from[1] == 1) return to.rows_of();
  if (!from.empty() && from.back() == to.columns && (from.size() == 1 || from[0] == 1)) {
    return to.columns_of();
  }
  return std::nullopt;
}

// Sums of mma.sync, and what follows from them: sizes may be any, so there are no maps of bits.
std::vector<Layout> fragment_proposals(const System& system, const Constraint& constraint,
                                       bool forward, const Layout& from) {
  const Operation& op = *constraint.op;
  const std::vector<int>& to = system.shape(forward ? constraint.b : constraint.a);
  switch (op.op) {
    case Op::kReduce:
      if (!forward || !from.is_mma()) return {};
      return {op.axis == 1 ? from.rows_of() : from.columns_of()};
    case Op::kReshape:
      if (!keeps(from, to)) return {};
      return {from};
    case Op::kBroadcast: {
      if (!forward) {
        auto source = from.is_mma() ? broadcast_source(to, from) : std::nullopt;
        return source ? std::vector{*source} : std::vector<Layout>{};
      }
      std::vector<Layout> out;
      if (to.size() != 2) return out;
      for (bool rows_together : {false, true}) {
        Layout whole = Layout::mma(to, system.threads, rows_together);
        if (broadcast_source(system.shape(constraint.a), whole) == from) out.push_back(whole);
      }
      return out;
    }
    case Op::kDot: {
      // As the left operand in registers, where each warp has whole rows.
      if (forward || constraint.operand != 1 || constraint.a != op.operands[1]) return {};
      Layout left = Layout::mma(to, system.threads, /*rows_together=*/true);
      bool fits = from.is_mma() && left.warps_n == 1 && left.warps_m == from.warps_m;
      return fits ? std::vector{left} : std::vector<Layout>{};
    }
    default:
      return {};
  }
}

}  // namespace

std::vector<Layout> proposals(const System& system, const Constraint& constraint, bool forward,
                              const Layout& from) {
  if (!from.is_special()) return {};
  if (constraint.kind == Constraint::Kind::kRelayout) return {from};
  if (constraint.kind != Constraint::Kind::kTransfer) return {};
  if (!from.is_bits()) return fragment_proposals(system, constraint, forward, from);
  if (constraint.op->op == Op::kReduce) {
    auto reduced = forward ? reduced_in_warp(from, constraint.op->axis) : std::nullopt;
    return reduced ? std::vector{reduced->result} : std::vector<Layout>{};
  }
  if (!is_move(system.kernel, *constraint.op)) return {};
  auto moved = forward ? moved_forward(system.kernel, *constraint.op, from)
                       : moved_backward(system.kernel, *constraint.op, constraint.operand, from);
  return moved ? std::vector{*moved} : std::vector<Layout>{};
}

}  // namespace tenon::codegen
