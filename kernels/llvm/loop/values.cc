#include "kernels/llvm/loop/values.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/llvm/loop/reducers.h"
#include "kernels/llvm/pointwise.h"

namespace tenon::kernels {

using codegen::kNone;

void Values::allocate_stashes() {
  for (const auto& [value, stash] : schedule_.stashes) {
    if (stash.store >= 0) continue;
    Dim elements = schedule_.lanes;
    for (int axis : schedule_.reduced_axes) {
      elements = elements * (schedule_.is_vector(axis)
                                 ? ceil_div(schedule_.vector_size, Dim(schedule_.lanes))
                                 : problem_.domain[axis]);
    }
    // An axis without elements is walked no time, but an allocation has one element at least.
    const int64_t count = std::max<int64_t>(1, elements.value());
    scratch_[value] = b_.alloc(compute_type(body_.value(value).dtype), count);
  }
}

// Values that every deeper point shares are computed here, once.
void Values::hoist() {
  for (const tiling::Access& load : problem_.loads) {
    if (problem_.is_baked(load.input)) continue;
    places_.hoist_gathers(load);
    if (is_hoistable(load.value)) number(load.value);
  }
  for (ir::NodeId id : problem_.region) {
    const ir::Node& node = body_.node(id);
    if (!is_reduction(node) && is_hoistable(node.output(0)) && operands_known(node)) {
      number(node.output(0));
    } else if (divides_by_sum(node) && find(numbers_, node.input(1)) != kNone) {
      reciprocal(node.input(1));
    }
  }
}

// Results of reductions exist only after their stage.
bool Values::operands_known(const ir::Node& node) const {
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ir::ValueId id) {
    return id == ir::kNoValue || problem_.find_load(id) != nullptr || find(numbers_, id) != kNone;
  });
}

bool Values::depends_on_lanes(ir::ValueId id) const {
  const AxisSet axes = schedule_.dependence.at(id);
  if (schedule_.flat || schedule_.tile_rows > 1) return axes != 0;
  return schedule_.vector_axis >= 0 && (axes >> schedule_.vector_axis & 1) != 0;
}

Tile Values::find(const Scopes& scopes, ir::ValueId id) {
  for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
    if (const auto found = scope->find(id); found != scope->end()) return found->second;
  }
  return kNone;
}

Tile Values::number(ir::ValueId id) {
  if (const Tile known = find(numbers_, id); known != kNone) return known;
  const Tile tile = compute(id);
  return numbers_.back()[id] = tile;
}

Tile Values::compute(ir::ValueId id) {
  if (const Tile stashed = read_stash(id); stashed != kNone) return stashed;
  if (const tiling::Access* load = problem_.find_load(id)) return load_number(*load);
  const ir::Node* node = body_.producer(id);
  if (node == nullptr) throw InternalError("a loop value with no producer");
  if (is_reduction(*node)) throw InternalError(fmt::format("{} is read too early", node->op));
  if (node->is("tenon::Position")) return position(*node);
  if (node->is("tenon::DimValue")) return dim_value(*node);
  if (makes_codes(*node)) return dequantize_tile(b_, codes(id), body_.value(id).dtype);
  if (divides_by_sum(*node)) return b_.mul({number(node->input(0)), reciprocal(node->input(1))});
  return emit_pointwise(b_, body_, *node, operands(*node));
}

// Softmax and the norms divide a row by a sum of exponentials, or the root of a sum: rounding has
// touched it already and its reciprocal cannot overflow. One reciprocal per row then replaces a
// division per element.
bool Values::divides_by_sum(const ir::Node& node) const {
  if (!node.is("Div") || depends_on_lanes(node.input(1)) || !depends_on_lanes(node.input(0)) ||
      !is_floating(compute_type(body_.value(node.output(0)).dtype))) {
    return false;
  }
  const ir::Node* divisor = body_.producer(node.input(1));
  if (divisor == nullptr) return false;
  if (divisor->is("Sqrt")) return has_sum(divisor->input(0));
  const ir::Node* summed = divisor->is("ReduceSum") ? body_.producer(divisor->input(0)) : nullptr;
  return summed != nullptr && summed->is("Exp");
}

bool Values::has_sum(ir::ValueId id) const {
  const ir::Node* node = body_.producer(id);
  if (node == nullptr || problem_.find_load(id) != nullptr) return false;
  if (node->is("ReduceSum") || node->is("ReduceMean")) return true;
  return std::any_of(node->inputs.begin(), node->inputs.end(),
                     [&](ir::ValueId input) { return input != ir::kNoValue && has_sum(input); });
}

Tile Values::reciprocal(ir::ValueId id) {
  if (const Tile known = find(reciprocals_, id); known != kNone) return known;
  const Tile tile = b_.unary(codegen::Fn::kReciprocal, number(id));
  return reciprocals_.back()[id] = tile;
}

std::vector<Tile> Values::operands(const ir::Node& node) {
  std::vector<Tile> tiles;
  for (ir::ValueId id : node.inputs) tiles.push_back(id == ir::kNoValue ? kNone : number(id));
  return tiles;
}

// What memory will hold.
Tile Values::codes(ir::ValueId id) {
  if (const Tile known = find(codes_, id); known != kNone) return known;
  const Tile tile = compute_codes(id);
  return codes_.back()[id] = tile;
}

Tile Values::compute_codes(ir::ValueId id) {
  const DType dtype = body_.value(id).dtype;
  if (const tiling::Access* load = problem_.find_load(id)) {
    const bool plain = load->guards.empty() && !problem_.is_baked(load->input);
    return plain ? elements_.load(*load) : quantize_tile(b_, number(id), dtype);
  }
  const ir::Node* node = body_.producer(id);
  if (node != nullptr && makes_codes(*node) && !is_stashed(id)) {
    return emit_codes(b_, body_, *node, operands(*node));
  }
  return quantize_tile(b_, number(id), dtype);
}

Tile Values::load_number(const tiling::Access& load) {
  const DType dtype = body_.value(load.value).dtype;
  if (problem_.is_baked(load.input)) return baked(load.input);
  if (load.guards.empty()) return dequantize_tile(b_, codes(load.value), dtype);
  Tile value = dequantize_tile(b_, elements_.load(load), dtype);
  for (auto guard = load.guards.rbegin(); guard != load.guards.rend(); ++guard) {
    const Tile parts[] = {places_.guard(*guard), value, fill(*guard)};
    const std::vector<Tile> same = broadcast_operands(b_, parts);
    value = b_.select(same[0], same[1], same[2]);
  }
  return value;
}

Tile Values::baked(ir::ValueId id) {
  const ir::Tensor& tensor = *body_.value(id).constant;
  return constant_tile(b_, tensor.dtype, tensor.data, 0);
}

Tile Values::fill(const tiling::Guard& guard) {
  if (problem_.is_baked(guard.fill)) return baked(guard.fill);
  tiling::Access scalar;
  scalar.value = scalar.input = guard.fill;
  scalar.strides.assign(problem_.domain.size(), Dim(0));
  return dequantize_tile(b_, elements_.load(scalar), body_.value(guard.fill).dtype);
}

Tile Values::position(const ir::Node& node) {
  const auto id =
      std::find_if(problem_.positions.begin(), problem_.positions.end(),
                   [&](const auto& entry) { return &body_.node(entry.first) == &node; });
  if (id == problem_.positions.end()) throw InternalError("a Position on no axis");
  return b_.cast(places_.position(id->second), compute_type(body_.value(node.output(0)).dtype));
}

Tile Values::dim_value(const ir::Node& node) {
  return b_.from_index(writer_.index(Dim::parse(node.text("dim", "0"))),
                       compute_type(body_.value(node.output(0)).dtype));
}

void Values::keep_stashes() {
  for (const auto& [value, stash] : schedule_.stashes) {
    if (stash.stage != static_cast<int>(stage_)) continue;
    const Tile numbers = number(value);
    if (stash.store >= 0) {
      elements_.keep(stash.store, numbers);
    } else {
      b_.store(scratch_access(value, !b_.type(numbers).shape.empty()), numbers);
    }
  }
}

// By an earlier stage.
bool Values::is_stashed(ir::ValueId id) const {
  const auto stash = schedule_.stashes.find(id);
  return stash != schedule_.stashes.end() && stash->second.stage < static_cast<int>(stage_);
}

Tile Values::read_stash(ir::ValueId id) {
  if (!is_stashed(id)) return kNone;
  const auto stash = schedule_.stashes.find(id);
  if (stash->second.store >= 0) return elements_.load_back(stash->second.store);
  const bool lanes = depends_on_lanes(id);
  return b_.load(scratch_access(id, lanes), lanes ? schedule_.tile_shape() : std::vector<int>{});
}

codegen::Access Values::scratch_access(ir::ValueId id, bool lanes) {
  const bool vector_reduced =
      schedule_.vector_axis >= 0 && problem_.is_reduced(schedule_.vector_axis);
  Tile place = b_.index(0);
  for (int axis : schedule_.reduced_axes) {
    if (schedule_.is_vector(axis)) continue;
    place = b_.add({b_.mul(place, writer_.index(problem_.domain[axis])), places_.coordinate(axis)});
  }
  if (vector_reduced) {
    const Dim padded = ceil_div(schedule_.vector_size, Dim(schedule_.lanes)) * Dim(schedule_.lanes);
    place = b_.add(
        {b_.mul(place, b_.index(padded.value())), places_.coordinate(schedule_.vector_axis)});
  } else {
    place = b_.mul(place, b_.index(schedule_.lanes));
  }
  codegen::Access access;
  access.buffer = scratch_.at(id);
  access.offset = place;
  if (lanes) access.strides = {b_.index(1)};
  return access;
}

}  // namespace tenon::kernels
