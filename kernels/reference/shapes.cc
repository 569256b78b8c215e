#include <cmath>

#include "base/error.h"
#include "kernels/reference/conversions.h"
#include "kernels/reference/op.h"

namespace tenon::kernels::reference {
namespace {

ReferenceTensor integer_tensor(DType dtype, Dims dims, const std::vector<int64_t>& values) {
  ReferenceTensor y = ReferenceTensor::zeros(dtype, std::move(dims));
  for (size_t i = 0; i < values.size(); ++i) y.set_integer(static_cast<int64_t>(i), values[i]);
  return y;
}

Outputs shape(const Call& call) {
  const Dims& dims = call.input(0).dims;
  const auto rank = static_cast<int64_t>(dims.size());
  const auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const int64_t start = clamp(call.node.integer("start", 0));
  const int64_t end = std::max(start, clamp(call.node.integer("end", rank)));
  return {
      integer_tensor(DType::kI64, {end - start}, Dims(dims.begin() + start, dims.begin() + end))};
}

Outputs size(const Call& call) {
  return {integer_tensor(DType::kI64, {}, {call.input(0).elements()})};
}

Outputs constant(const Call& call) {
  const ir::Node& node = call.node;
  if (node.has("value")) return {ReferenceTensor::from(*node.tensor("value"))};
  if (node.has("value_float")) {
    return {ReferenceTensor::of(DType::kF32, {}, {node.number("value_float", 0)})};
  }
  if (node.has("value_int"))
    return {integer_tensor(DType::kI64, {}, {node.integer("value_int", 0)})};
  if (node.has("value_ints")) {
    const std::vector<int64_t> values = node.integers("value_ints");
    return {integer_tensor(DType::kI64, {static_cast<int64_t>(values.size())}, values)};
  }
  if (!node.has("value_floats")) throw UserError("the reference knows Constants of numbers only");
  const std::vector<float> values = node.numbers("value_floats");
  return {ReferenceTensor::of(DType::kF32, {static_cast<int64_t>(values.size())},
                              std::vector<double>(values.begin(), values.end()))};
}

Outputs constant_of_shape(const Call& call) {
  const Dims dims = call.input(0).integers;
  const ReferenceTensor value = call.node.has("value")
                                    ? ReferenceTensor::from(*call.node.tensor("value"))
                                    : ReferenceTensor::of(DType::kF32, {1}, {0});
  return {remap(value, dims, [](const Index&) { return 0; })};
}

Outputs range(const Call& call) {
  const double start = call.input(0).number(0), limit = call.input(1).number(0);
  const double step = call.input(2).number(0);
  const auto count = static_cast<int64_t>(std::max(0.0, std::ceil((limit - start) / step)));
  ReferenceTensor y = ReferenceTensor::zeros(call.input(0).dtype, {count});
  for (int64_t i = 0; i < count; ++i) y.set(i, start + static_cast<double>(i) * step);
  return {std::move(y)};
}

Outputs shape_value(const Call& call) {
  const auto* dims = std::get_if<std::vector<std::string>>(&call.node.attributes.at("dims"));
  if (!dims) throw UserError("tenon::ShapeValue needs dims as text");
  std::vector<int64_t> values;
  for (const std::string& text : *dims) values.push_back(call.value_of(Dim::parse(text)));
  return {integer_tensor(call.output_type(), call.required_output_dims(), values)};
}

Outputs dim_value(const Call& call) {
  const int64_t value = call.value_of(Dim::parse(call.node.text("dim", "")));
  ReferenceTensor y = ReferenceTensor::zeros(call.output_type(), call.required_output_dims());
  for (int64_t i = 0; i < y.elements(); ++i) y.set(i, static_cast<double>(value));
  return {std::move(y)};
}

Outputs position(const Call& call) {
  const Dims dims = call.required_output_dims();
  const size_t axis = normal_axis(call.node.integer("axis", 0), dims.size());
  ReferenceTensor y = ReferenceTensor::zeros(call.output_type(), dims);
  for_each_index(dims, [&](const Index& index, int64_t flat) {
    y.set(flat, static_cast<double>(index[axis]));
  });
  return {std::move(y)};
}

Outputs one_hot(const Call& call) {
  const ReferenceTensor &indices = call.input(0), &values = call.input(2);
  const auto depth = static_cast<int64_t>(call.input(1).number(0));
  const size_t axis = normal_axis(call.node.integer("axis", -1), indices.dims.size() + 1);
  Dims dims = indices.dims;
  dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), depth);
  return {remap(values, dims, [&](const Index& index) -> std::optional<int64_t> {
    Index from = index;
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(axis));
    const auto asked = static_cast<int64_t>(indices.number(flat_index(indices.dims, from)));
    return (asked < 0 ? asked + depth : asked) == index[axis] ? 1 : 0;
  })};
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"Shape", shape},
    {"Size", size},
    {"Constant", constant},
    {"ConstantOfShape", constant_of_shape},
    {"Range", range},
    {"OneHot", one_hot},
    {"tenon::ShapeValue", shape_value},
    {"tenon::DimValue", dim_value},
    {"tenon::Position", position},
});

}  // namespace

std::span<const OpEntry> shape_ops() { return kOps; }

}  // namespace tenon::kernels::reference
