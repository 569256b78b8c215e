#include "graph_partitioner/passes/move.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"

namespace tenon {
namespace {

using Kind = Move::Kind;

constexpr auto kOps = std::to_array<std::pair<std::string_view, Kind>>({
    {"Transpose", Kind::kTranspose},
    {"tenon::Slice", Kind::kSlice},
    {"Expand", Kind::kExpand},
    {"tenon::BlockExpand", Kind::kBlockExpand},
    {"Gather", Kind::kGather},
    {"Reshape", Kind::kReshape},
});

bool is_one(const Dim& dim) { return dim.is(1); }

bool all_ones(const Shape& shape) { return std::all_of(shape.begin(), shape.end(), is_one); }

// The operand's dims beside the whole's, with 1 for axes that it lacks.
Shape padded_to(const Shape& operand, size_t rank) {
  Shape result(rank - operand.size(), Dim(1));
  result.insert(result.end(), operand.begin(), operand.end());
  return result;
}

// Every dim is the whole's own or 1.
bool is_aligned(const Shape& whole, const Shape& padded) {
  for (size_t axis = 0; axis < whole.size(); ++axis) {
    if (!(padded[axis] == whole[axis]) && !padded[axis].is(1)) return false;
  }
  return true;
}

Move reshape_to(Shape shape) {
  Move move;
  move.kind = Kind::kReshape;
  move.result = std::move(shape);
  return move;
}

// One element broadcasts into anything, as long as its rank does.
Move keep_scalar(const Shape& operand, const Shape& result) {
  return operand.size() <= result.size() ? Move{} : reshape_to({});
}

Move adapt_transpose(const Move& move, const Shape& padded, const Shape& operand) {
  Shape moved;
  std::vector<int64_t> kept;  // axes of more than one element, in their new order
  for (const int64_t axis : move.perm) {
    moved.push_back(padded[axis]);
    if (!padded[axis].is(1)) kept.push_back(axis);
  }
  if (std::is_sorted(kept.begin(), kept.end())) return reshape_to(std::move(moved));
  if (operand.size() != padded.size()) return {};
  Move adapted = move;
  adapted.result = std::move(moved);
  return adapted;
}

std::optional<Move> adapt_slice(const Move& move, const Shape& whole, const Shape& operand) {
  Move adapted = move;
  const size_t missing = whole.size() - operand.size();
  adapted.starts.assign(move.starts.begin() + missing, move.starts.end());
  adapted.steps.assign(move.steps.begin() + missing, move.steps.end());
  adapted.result = operand;
  for (size_t axis = 0; axis < operand.size(); ++axis) {
    if (operand[axis].is(1)) {
      if (whole[axis + missing].is(1) && !move.result[axis + missing].is(1)) return std::nullopt;
      adapted.starts[axis] = 0;
      adapted.steps[axis] = 1;
    } else {
      adapted.result[axis] = move.result[axis + missing];
    }
  }
  return adapted;
}

std::optional<Move> adapt_block_expand(const Move& move, const Shape& whole, const Shape& operand) {
  const int64_t axis = move.axis - static_cast<int64_t>(whole.size() - operand.size());
  if (axis < 0 || !(operand[axis] == whole[move.axis])) return Move{};
  Move adapted = move;
  adapted.axis = axis;
  adapted.result = operand;
  adapted.result[axis] = move.result[move.axis];
  return adapted;
}

std::optional<Move> adapt_gather(const Move& move, const Shape& whole, const Shape& operand) {
  const int64_t axis = move.axis - static_cast<int64_t>(whole.size() - operand.size());
  if (axis < 0) return Move{};
  const bool picked = operand[axis] == whole[move.axis];
  Shape moved(operand.begin(), operand.begin() + axis);
  for (const Dim& dim : move.indices_shape) moved.push_back(picked ? dim : Dim(1));
  moved.insert(moved.end(), operand.begin() + axis + 1, operand.end());
  if (!picked) return reshape_to(std::move(moved));
  Move adapted = move;
  adapted.axis = axis;
  adapted.result = std::move(moved);
  return adapted;
}

std::vector<Dim> parse_dims(const std::vector<std::string>& texts) {
  std::vector<Dim> dims;
  for (const std::string& text : texts) dims.push_back(Dim::parse(text));
  return dims;
}

std::vector<std::string> texts_of(const std::vector<Dim>& dims) {
  std::vector<std::string> texts;
  for (const Dim& dim : dims) texts.push_back(dim.text());
  return texts;
}

}  // namespace

std::optional<Move> Move::of(const ir::Graph& graph, const ir::Node& node) {
  const auto op = std::find_if(kOps.begin(), kOps.end(),
                               [&](const auto& entry) { return node.is(entry.first); });
  if (op == kOps.end() || !graph.value(node.input(0)).shape || !graph.value(node.output(0)).shape) {
    return std::nullopt;
  }
  const auto rank = static_cast<int64_t>(graph.value(node.input(0)).shape->size());
  Move move;
  move.kind = op->second;
  move.result = *graph.value(node.output(0)).shape;
  move.perm = node.integers("perm");
  move.starts = parse_dims(node.texts("starts"));
  move.steps = node.integers("steps");
  move.axis = node.integer("axis", 0);
  move.block = node.integer("block", 1);
  if (move.kind == Kind::kGather) {
    move.indices = node.input(1);
    if (!graph.value(move.indices).shape) return std::nullopt;
    move.indices_shape = *graph.value(move.indices).shape;
  }
  const bool one_input = node.inputs.size() == (move.kind == Kind::kGather ? 2 : 1);
  const bool axis_fits = move.axis >= 0 && (move.axis < rank || move.kind == Kind::kReshape ||
                                            move.kind == Kind::kExpand);
  const bool perm_fits =
      move.kind != Kind::kTranspose || static_cast<int64_t>(move.perm.size()) == rank;
  const bool slice_fits =
      move.kind != Kind::kSlice || (static_cast<int64_t>(move.starts.size()) == rank &&
                                    static_cast<int64_t>(move.steps.size()) == rank);
  if (!one_input || !axis_fits || !perm_fits || !slice_fits) return std::nullopt;
  return move;
}

std::optional<Move> Move::adapt(const Shape& whole, const Shape& operand) const {
  if (operand.size() > whole.size()) return std::nullopt;
  const Shape padded = padded_to(operand, whole.size());
  if (kind == Kind::kExpand) {
    // Operands that are not the whole broadcast to the result by themselves.
    if (operand == whole) return *this;
    return is_aligned(whole, padded) ? std::optional<Move>(Move{}) : std::nullopt;
  }
  if (kind == Kind::kReshape) {
    if (operand == whole) return *this;
    return all_ones(operand) ? std::optional<Move>(keep_scalar(operand, result)) : std::nullopt;
  }
  if (!is_aligned(whole, padded)) return std::nullopt;
  if (all_ones(operand) && !all_ones(whole)) return keep_scalar(operand, result);
  switch (kind) {
    case Kind::kTranspose: {
      Move adapted = adapt_transpose(*this, padded, operand);
      if (adapted.is_none()) return std::nullopt;
      return adapted;
    }
    case Kind::kSlice:
      return adapt_slice(*this, whole, operand);
    case Kind::kBlockExpand:
      return adapt_block_expand(*this, whole, operand);
    case Kind::kGather:
      return adapt_gather(*this, whole, operand);
    default:
      throw InternalError("Move::adapt: a move without a rule");
  }
}

ir::Node Move::node(ir::ValueId data) const {
  ir::Node node;
  for (const auto& [op, own_kind] : kOps) {
    if (own_kind == kind) node.op = op;
  }
  node.inputs = {data};
  switch (kind) {
    case Kind::kTranspose:
      node.attributes["perm"] = perm;
      break;
    case Kind::kSlice:
      node.attributes["starts"] = texts_of(starts);
      node.attributes["steps"] = steps;
      break;
    case Kind::kBlockExpand:
      node.attributes["axis"] = axis;
      node.attributes["block"] = block;
      break;
    case Kind::kGather:
      node.inputs.push_back(indices);
      node.attributes["axis"] = axis;
      break;
    default:
      break;
  }
  return node;
}

}  // namespace tenon
