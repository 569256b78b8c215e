#include "kernels/llvm/scaled_dot/epilogue.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <utility>

#include "base/convert.h"
#include "kernels/llvm/pointwise.h"

namespace tenon::kernels {
namespace {

using codegen::kNone;
using codegen::ValueId;

Shape result_shape(const ScaledDotProblem& problem) {
  Shape shape = problem.batch;
  shape.push_back(problem.m);
  shape.push_back(problem.n);
  return shape;
}

std::optional<float> constant_alpha(const ir::Graph& graph, const ir::ScaledDot& dot) {
  if (dot.alpha == ir::kNoValue) return dot.alpha_constant;
  const ir::Value& alpha = graph.value(dot.alpha);
  if (!alpha.is_constant()) return std::nullopt;
  return dot.alpha_constant *
         static_cast<float>(load_element(alpha.dtype, alpha.constant->data, 0));
}

Support check_operand(const ir::Graph& graph, ir::ValueId id, const Shape& result) {
  const ir::Value& value = graph.value(id);
  if (Support type = supports_type(value.dtype); !type) return type;
  if (is_packed(value.dtype)) return Support::no("sub-byte epilogue operands are not supported");
  if (!value.shape || value.shape->size() > result.size()) {
    return Support::no(fmt::format("'{}' does not broadcast to the result", value.name));
  }
  const Shape& shape = *value.shape;
  const size_t shift = result.size() - shape.size();
  if (!shape.empty() && !shape.back().is(1) && !(shape.back() == result.back())) {
    return Support::no(
        fmt::format("whether '{}' broadcasts along N is not known before Run", value.name));
  }
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis].is(1) || shape[axis] == result[axis + shift]) continue;
    if (!broadcast_shapes({shape[axis]}, {result[axis + shift]})) {
      return Support::no(fmt::format("'{}' does not broadcast to the result", value.name));
    }
  }
  return Support::yes();
}

Support check_body(const ir::Graph& body) {
  for (const ir::NodeId id : body.order()) {
    const ir::Node& node = body.node(id);
    if (Support answer = supports_pointwise(body, node); !answer) return answer;
    for (const ir::ValueId input : node.inputs) {
      if (input == ir::kNoValue || !body.value(input).is_constant()) continue;
      if (body.value(input).constant->elements() != 1) {
        return Support::no("a constant in the epilogue is not a scalar");
      }
    }
  }
  return Support::yes();
}

}  // namespace

Support Epilogue::supports(const ir::Graph& graph, const ir::Node& node,
                           const ScaledDotProblem& problem) {
  const Shape result = result_shape(problem);
  for (const ir::ValueId output : node.outputs) {
    const ir::Value& value = graph.value(output);
    if (Support type = supports_type(value.dtype); !type) return type;
    if (is_packed(value.dtype)) return Support::no("sub-byte outputs are not supported");
  }
  if (problem.dot.bias != ir::kNoValue) {
    if (Support answer = check_operand(graph, problem.dot.bias, result); !answer) return answer;
  }
  for (const ir::ValueId extra : problem.dot.extra) {
    if (Support answer = check_operand(graph, extra, result); !answer) return answer;
  }
  return node.body ? check_body(*node.body) : Support::yes();
}

Epilogue::Epilogue(LaunchWriter& writer, const ir::Graph& graph, const ir::Node& node,
                   const ScaledDotProblem& problem, std::vector<int> shape, Lowered& lowered,
                   EpilogueRole role)
    : writer_(writer),
      b_(writer.builder),
      graph_(graph),
      node_(node),
      problem_(problem),
      result_(result_shape(problem)),
      shape_(std::move(shape)),
      role_(std::move(role)) {
  const ir::ScaledDot& dot = problem.dot;
  declare_alpha(lowered);
  if (dot.bias != ir::kNoValue) bias_ = declare_operand("bias", dot.bias);
  for (size_t i = 0; i < dot.extra.size(); ++i) {
    extra_.emplace_back();
    if (dot.extra[i] == role_.given) continue;
    extra_.back() = declare_operand(fmt::format("operand{}", i), dot.extra[i]);
  }
  for (size_t i = 0; i < node.outputs.size() && role_.stores; ++i) {
    outputs_.push_back(writer.buffer(fmt::format("y{}{}", i, role_.suffix),
                                     storage_type(graph.value(node.outputs[i]).dtype),
                                     BufferArgument::value(node.outputs[i])));
  }
  for (const Dim& dim : result_) writer.declare(dim);
  for (const std::optional<Operand>& operand : extra_) {
    if (!operand) continue;
    for (const Dim& stride : operand->strides) writer.declare(stride);
  }
  if (bias_) {
    for (const Dim& stride : bias_->strides) writer.declare(stride);
  }
}

Epilogue::Operand Epilogue::declare_operand(const std::string& name, ir::ValueId id) {
  const ir::Value& value = graph_.value(id);
  Operand operand;
  operand.dtype = value.dtype;
  operand.buffer =
      writer_.buffer(name + role_.suffix, storage_type(value.dtype), BufferArgument::value(id));
  const Shape strides = contiguous_strides(*value.shape);
  const size_t shift = result_.size() - value.shape->size();
  operand.strides.assign(result_.size(), Dim(0));
  operand.follows_rows = shift == 0;
  operand.repeats_rows = true;
  for (size_t axis = 0; axis < value.shape->size(); ++axis) {
    const Dim& dim = (*value.shape)[axis];
    operand.strides[axis + shift] = stride_unless_one(dim, strides[axis]);
    if (axis + 1 == value.shape->size()) continue;
    operand.follows_rows = operand.follows_rows && dim == result_[axis];
    operand.repeats_rows = operand.repeats_rows && dim.is(1);
  }
  return operand;
}

void Epilogue::declare_alpha(Lowered& lowered) {
  const ir::ScaledDot& dot = problem_.dot;
  const auto constant = constant_alpha(graph_, dot);
  if (!constant) {
    alpha_type_ = graph_.value(dot.alpha).dtype;
    alpha_factor_ = dot.alpha_constant;
    alpha_buffer_ = writer_.buffer("alpha" + role_.suffix, storage_type(alpha_type_),
                                   BufferArgument::value(dot.alpha));
  } else if (*constant != 1.0f) {
    PackedConstant packed{aligned_bytes(sizeof(float)), sizeof(float)};
    std::memcpy(packed.data.get(), &*constant, sizeof(float));
    lowered.packed.push_back(std::move(packed));
    const auto id = static_cast<int32_t>(lowered.packed.size()) - 1;
    alpha_buffer_ = writer_.buffer("alpha" + role_.suffix, DType::kF32, BufferArgument::packed(id));
  }
}

void Epilogue::begin() {
  if (alpha_buffer_ == kNone) return;
  Tile alpha = dequantize_tile(b_, b_.load({alpha_buffer_, b_.index(0), {}, {}}, {}), alpha_type_);
  alpha = b_.cast(alpha, DType::kF32);
  if (alpha_factor_ != 1.0f) alpha = b_.mul(alpha, b_.constant(DType::kF32, alpha_factor_));
  alpha_ = b_.splat(alpha, shape_);
}

ValueId Epilogue::row_offset(const Operand& operand, ValueId row) {
  if (operand.repeats_rows) return b_.index(0);
  const size_t last = result_.size() - 1;
  if (operand.follows_rows) {
    // Rows are as long as the result's, or one element.
    const bool wide = !operand.strides[last].is(0);
    return wide ? b_.mul(row, writer_.index(result_[last])) : row;
  }
  ValueId offset = b_.index(0);
  for (size_t axis = last; axis-- > 0;) {
    const ValueId size = writer_.index(result_[axis]);
    const ValueId coordinate = axis == 0 ? row : b_.rem(row, size);
    offset = b_.add(offset, b_.mul(coordinate, writer_.index(operand.strides[axis])));
    if (axis > 0) row = b_.div(row, size);
  }
  return offset;
}

void Epilogue::ask(const Place& place) {
  if (bias_) bias_->asked = load_codes(*bias_, place);
  for (std::optional<Operand>& operand : extra_) {
    if (operand) operand->asked = load_codes(*operand, place);
  }
}

Tile Epilogue::load(Operand& operand, const Place& place) {
  const Tile asked = std::exchange(operand.asked, kNone);
  return dequantize_tile(b_, asked != kNone ? asked : load_codes(operand, place), operand.dtype);
}

Tile Epilogue::load_codes(const Operand& operand, const Place& place) {
  return is_row() ? load_row(operand, place) : load_rows(operand, place);
}

Tile Epilogue::load_row(const Operand& operand, const Place& place) {
  const ValueId offset = row_offset(operand, place.row);
  if (operand.strides.back().is(0)) {
    return b_.splat(b_.load({operand.buffer, offset, {}, {}}, {}), shape_);
  }
  return b_.load({operand.buffer, b_.add(offset, place.column), {}, {place.columns_left}}, shape_);
}

// What repeats along one dimension is read once along the other.
Tile Epilogue::load_rows(const Operand& operand, const Place& place) {
  const bool wide = !operand.strides.back().is(0);
  if (!operand.repeats_rows && !operand.follows_rows) return gather_rows(operand, place);
  const ValueId offset = row_offset(operand, place.row);
  if (operand.repeats_rows) {
    if (!wide) return b_.splat(b_.load({operand.buffer, offset, {}, {}}, {}), shape_);
    const codegen::Access row{
        operand.buffer, b_.add(offset, place.column), {}, {place.columns_left}};
    return b_.broadcast(b_.load(row, {shape_[1]}), shape_);
  }
  if (!wide) {
    const Tile column = b_.load({operand.buffer, offset, {}, {place.rows_left}}, {shape_[0]});
    return b_.broadcast(b_.reshape(column, {shape_[0], 1}), shape_);
  }
  return b_.load({operand.buffer,
                  b_.add(offset, place.column),
                  {writer_.index(problem_.n), b_.index(1)},
                  {place.rows_left, place.columns_left}},
                 shape_);
}

// Rows that repeat along some batch axes: each has an offset of its own.
Tile Epilogue::gather_rows(const Operand& operand, const Place& place) {
  const size_t last = result_.size() - 1;
  const auto everywhere = [&](ValueId index) {
    return b_.splat(b_.from_index(index, DType::kI64), shape_);
  };
  Tile row = b_.add({everywhere(place.row), b_.iota(DType::kI64, shape_, 0)});
  const Tile column = b_.add({everywhere(place.column), b_.iota(DType::kI64, shape_, 1)});
  Tile inside = kNone;
  const auto require = [&](Tile numbers, ValueId first, ValueId left) {
    if (left == kNone) return;
    const Tile condition = b_.compare(codegen::Fn::kLess, numbers, everywhere(b_.add(first, left)));
    inside = inside == kNone ? condition : b_.binary(codegen::Fn::kAnd, inside, condition);
  };
  require(row, place.row, place.rows_left);
  require(column, place.column, place.columns_left);
  Tile offset = operand.strides[last].is(0) ? everywhere(b_.index(0)) : column;
  for (size_t axis = last; axis-- > 0;) {
    const Tile size = everywhere(writer_.index(result_[axis]));
    const Tile coordinate = axis == 0 ? row : b_.rem(row, size);
    offset = b_.add(offset, b_.mul(coordinate, everywhere(writer_.index(operand.strides[axis]))));
    if (axis > 0) row = b_.div(row, size);
  }
  return b_.gather(operand.buffer, b_.index(0), offset, inside);
}

void Epilogue::emit(const Place& place, Tile accumulators, Tile given) {
  const std::vector<Result> all = results(place, accumulators, given);
  for (size_t i = 0; i < all.size(); ++i) {
    const DType dtype = graph_.value(node_.outputs[i]).dtype;
    store(i, place, all[i].code != kNone ? all[i].code : quantize_tile(b_, all[i].number, dtype));
  }
}

Tile Epilogue::result(const Place& place, Tile accumulators) {
  return results(place, accumulators, kNone).front().number;
}

std::vector<Epilogue::Result> Epilogue::results(const Place& place, Tile accumulators, Tile given) {
  if (alpha_ != kNone) accumulators = b_.mul(accumulators, alpha_);
  if (bias_) accumulators = b_.add(accumulators, b_.cast(load(*bias_, place), DType::kF32));
  if (node_.body == nullptr) return {{accumulators}};
  std::vector<Tile> inputs = {accumulators};
  for (std::optional<Operand>& operand : extra_) {
    inputs.push_back(operand ? load(*operand, place) : given);
  }
  return emit_body(inputs);
}

std::vector<Epilogue::Result> Epilogue::emit_body(const std::vector<Tile>& inputs) {
  const ir::Graph& body = *node_.body;
  std::map<ir::ValueId, Tile> numbers, codes;
  for (size_t i = 0; i < inputs.size(); ++i) numbers[body.inputs()[i]] = inputs[i];
  const auto operand = [&](ir::ValueId id) {
    if (id == ir::kNoValue) return kNone;
    const ir::Value& value = body.value(id);
    if (!value.is_constant()) return numbers.at(id);
    return constant_tile(b_, value.dtype, value.constant->data, 0, shape_);
  };
  for (const ir::NodeId id : body.order()) {
    const ir::Node& node = body.node(id);
    std::vector<Tile> operands;
    for (const ir::ValueId input : node.inputs) operands.push_back(operand(input));
    const ir::ValueId output = node.outputs[0];
    if (makes_codes(node)) {
      codes[output] = emit_codes(b_, body, node, operands);
      numbers[output] = dequantize_tile(b_, codes[output], body.value(output).dtype);
    } else {
      numbers[output] = emit_pointwise(b_, body, node, operands);
    }
  }
  std::vector<Result> results;
  for (const ir::ValueId output : body.outputs()) {
    const auto known = codes.find(output);
    results.push_back({operand(output), known != codes.end() ? known->second : kNone});
  }
  return results;
}

void Epilogue::store(size_t output, const Place& place, Tile codes) {
  const ValueId n = writer_.index(problem_.n);
  codegen::Access to{outputs_[output], b_.add(b_.mul(place.row, n), place.column)};
  if (is_row()) {
    to.extents = {place.columns_left};
  } else {
    to.strides = {n, b_.index(1)};
    to.extents = {place.rows_left, place.columns_left};
  }
  b_.store(to, codes);
}

}  // namespace tenon::kernels
