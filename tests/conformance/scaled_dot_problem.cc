#include "tests/conformance/scaled_dot_problem.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/convert.h"
#include "graph_partitioner/ir/fusions.h"
#include "kernels/reference/dots.h"
#include "kernels/reference/evaluate.h"

namespace tenon::kernels {
namespace {

using ir::ValueId;
using reference::ReferenceTensor;

constexpr auto kForms = std::to_array<DotForm>({
    {.name = "f32", .element = DType::kF32, .k_last = false},
    {.name = "f32_transposed", .element = DType::kF32},
    {.name = "f16", .element = DType::kF16, .k_last = false},
    {.name = "bf16", .element = DType::kBF16, .k_last = false},
    {.name = "f16_transposed", .element = DType::kF16},
    {.name = "bf16_transposed", .element = DType::kBF16},
    {.name = "nvfp4", .element = DType::kF4E2M1, .scale = DType::kF8E4M3FN, .block = 16},
    {.name = "nvfp4_f32_scale", .element = DType::kF4E2M1, .scale = DType::kF32, .block = 16},
    {.name = "nvfp4_bytes",
     .element = DType::kF4E2M1,
     .scale = DType::kF8E4M3FN,
     .block = 16,
     .as_bytes = true},
    {.name = "mxfp4", .element = DType::kF4E2M1, .scale = DType::kF8E8M0, .block = 32},
    {.name = "mxfp8", .element = DType::kF8E4M3FN, .scale = DType::kF8E8M0, .block = 32},
    {.name = "mxfp8_e5m2", .element = DType::kF8E5M2, .scale = DType::kF8E8M0, .block = 32},
    {.name = "fp8_tensor",
     .element = DType::kF8E4M3FN,
     .scale = DType::kF32,
     .per_channel = false,
     .k_last = false},
    {.name = "fp8_channel", .element = DType::kF8E4M3FN, .scale = DType::kF32},
    {.name = "fp8_block", .element = DType::kF8E4M3FN, .scale = DType::kF32, .block = 128},
    {.name = "fp8_square",
     .element = DType::kF8E4M3FN,
     .scale = DType::kF32,
     .block = 128,
     .rows = 128},
    {.name = "fp8_e5m2_block", .element = DType::kF8E5M2, .scale = DType::kF16, .block = 64},
    {.name = "int4_k_major",
     .element = DType::kI4,
     .scale = DType::kF32,
     .block = 32,
     .k_last = false},
    {.name = "int4_n_major", .element = DType::kI4, .scale = DType::kF16, .block = 32},
    {.name = "uint4_zero",
     .element = DType::kU4,
     .scale = DType::kF32,
     .block = 32,
     .zero = DType::kU4,
     .k_last = false},
    {.name = "uint4_large_zero",
     .element = DType::kU4,
     .scale = DType::kF32,
     .block = 128,
     .zero = DType::kU4},
    {.name = "int8_channel", .element = DType::kI8, .scale = DType::kF32, .k_last = false},
    {.name = "uint8_zero", .element = DType::kU8, .scale = DType::kF32, .zero = DType::kU8},
    {.name = "uint8_block_zero",
     .element = DType::kU8,
     .scale = DType::kF32,
     .block = 64,
     .zero = DType::kU8},
    {.name = "int2", .element = DType::kI2, .scale = DType::kF32, .block = 16},
    {.name = "int2_zero",
     .element = DType::kI2,
     .scale = DType::kF32,
     .block = 64,
     .zero = DType::kI2},
    {.name = "nbits2_zero",
     .element = DType::kU2,
     .scale = DType::kF32,
     .block = 16,
     .zero = DType::kU2,
     .as_bytes = true},
    {.name = "nbits2", .element = DType::kU2, .scale = DType::kF32, .block = 32, .as_bytes = true},
    {.name = "nbits4", .element = DType::kU4, .scale = DType::kF32, .block = 32, .as_bytes = true},
    {.name = "nbits4_zero",
     .element = DType::kU4,
     .scale = DType::kF32,
     .block = 32,
     .zero = DType::kU4,
     .as_bytes = true},
    {.name = "nbits4_float_zero",
     .element = DType::kU4,
     .scale = DType::kF32,
     .block = 32,
     .zero = DType::kF32,
     .as_bytes = true},
    {.name = "nbits8", .element = DType::kU8, .scale = DType::kF32, .block = 64, .as_bytes = true},
});

constexpr auto kLeftForms = std::to_array<LeftForm>({
    {.name = "fp8", .codes = DType::kF8E4M3FN},
    {.name = "fp8_e5m2", .codes = DType::kF8E5M2, .scale = DType::kF16},
    {.name = "fp8_fnuz", .codes = DType::kF8E4M3FNUZ},
    {.name = "fp8_rows", .codes = DType::kF8E4M3FN, .per_row = true},
    {.name = "fp8_block", .codes = DType::kF8E4M3FN, .block = 128},
    {.name = "mxfp8", .codes = DType::kF8E4M3FN, .scale = DType::kF8E8M0, .block = 32},
    {.name = "mxfp8_e5m2", .codes = DType::kF8E5M2, .scale = DType::kF8E8M0, .block = 32},
    {.name = "mxfp4", .codes = DType::kF4E2M1, .scale = DType::kF8E8M0, .block = 32},
    {.name = "nvfp4", .codes = DType::kF4E2M1, .scale = DType::kF8E4M3FN, .block = 16},
    {.name = "int8", .codes = DType::kI8},
    {.name = "int8_zero", .codes = DType::kI8, .zero = DType::kI8},
    {.name = "uint8_zero", .codes = DType::kU8, .zero = DType::kU8},
});

// Uniform over [-1, 1) or, for scales, over a few powers of two below 1.
double uniform(std::mt19937& random) { return std::ldexp(static_cast<double>(random()), -31) - 1; }

// To 10 bits behind the first.
double round_to_tf32(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int last = std::max(std::ilogb(x), -126) - 10;
  return std::ldexp(std::nearbyint(std::ldexp(x, -last)), last);
}

// Numbers half way between two of tf32 are rounded one way by some GPUs and the other by others.
double without_tie(float x) {
  constexpr uint32_t kDropped = 0x1fff, kHalf = 0x1000;
  const bool is_tie = (std::bit_cast<uint32_t>(x) & kDropped) == kHalf;
  return is_tie ? std::nextafter(x, 0.0f) : x;
}

ReferenceTensor random_scale(DType dtype, std::vector<int64_t> dims, std::mt19937& random) {
  ReferenceTensor scale = ReferenceTensor::zeros(dtype, std::move(dims));
  for (int64_t i = 0; i < scale.elements(); ++i) {
    const double value = std::ldexp(1.5 + uniform(random) / 2, -static_cast<int>(random() % 4));
    scale.set(i, decode(dtype, encode(dtype, value)));
  }
  return scale;
}

ValueId add_operand(ir::Graph& graph, const char* name, const ReferenceTensor& tensor,
                    bool constant) {
  if (constant) {
    const std::vector<std::byte> bytes = tensor.bytes();
    return graph.add_constant(name, ir::Tensor::copy(tensor.dtype, tensor.dims, bytes));
  }
  ir::Value value;
  value.name = name;
  value.dtype = tensor.dtype;
  value.shape = make_shape(tensor.dims);
  return graph.add_input(std::move(value));
}

ValueId add_value(ir::Graph& graph, const char* name, DType dtype, Shape shape) {
  ir::Value value;
  value.name = name;
  value.dtype = dtype;
  value.shape = std::move(shape);
  return graph.add_value(std::move(value));
}

// The bytes of rows of small elements as a uint8 tensor; each row starts on a byte.
ReferenceTensor hide_in_bytes(const ReferenceTensor& x, int64_t rows) {
  const int64_t columns = x.elements() / rows;
  const auto row_bytes = static_cast<int64_t>(storage_bytes(x.dtype, columns));
  ReferenceTensor bytes = ReferenceTensor::zeros(DType::kU8, {rows, row_bytes});
  const std::vector<std::byte> all = x.bytes();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int per_byte = 8 / bit_width(x.dtype);
      const int shift = static_cast<int>(c % per_byte) * bit_width(x.dtype);
      const auto code = static_cast<int64_t>(load_code(x.dtype, all.data(), r * columns + c));
      const int64_t at = r * row_bytes + c / per_byte;
      bytes.integers[static_cast<size_t>(at)] |= code << shift;
    }
  }
  return bytes;
}

// Where the scales and zero points of a form stand for [n, k].
std::vector<int64_t> parameter_dims(const DotForm& form, int64_t n, int64_t k) {
  if (!form.per_channel) return {};
  if (form.block == 0) return {n};
  const int64_t blocks = (k + form.block - 1) / form.block;
  return form.k_last ? std::vector<int64_t>{n, blocks} : std::vector<int64_t>{blocks, n};
}

// Only of [n, blocks].
void share_scales(const DotForm& form, ReferenceTensor& scale) {
  if (form.rows == 1) return;
  const int64_t blocks = scale.dims[1];
  for (int64_t i = 0; i < scale.elements(); ++i) {
    const int64_t first = i / blocks / form.rows * form.rows;
    scale.set(i, scale.number(first * blocks + i % blocks));
  }
}

void add_weight(ir::Graph& graph, const DotProblem& problem, ir::ScaledDot& dot,
                std::mt19937& random) {
  const DotForm& form = problem.form;
  const auto [n, k] = problem.size;
  // MatMulNBits keeps whole blocks, the last one padded; FP4 rows end with K.
  const bool padded = form.as_bytes && is_integer(form.element);
  const int64_t stored_k = padded ? (k + form.block - 1) / form.block * form.block : k;
  const std::vector<int64_t> dims =
      form.k_last ? std::vector<int64_t>{n, stored_k} : std::vector<int64_t>{k, n};
  ReferenceTensor b = random_tensor(form.element, dims, random);
  if (form.as_bytes) {
    dot.b_type = form.element;
    dot.b_dims = {n, k};
    b = hide_in_bytes(b, n);
    const bool centred = is_integer(form.element) && form.zero == DType::kUndefined;
    if (centred) dot.scale_b.zero_offset = int64_t{1} << (bit_width(form.element) - 1);
  }
  dot.b = add_operand(graph, "b", b, problem.constant_weight);
  dot.b_k_last = form.k_last;
  dot.scale_b.block = form.block;
  dot.scale_b.per_channel = form.per_channel;
  if (form.scale == DType::kUndefined) return;
  const std::vector<int64_t> scale_dims = parameter_dims(form, n, k);
  ReferenceTensor scale = random_scale(form.scale, scale_dims, random);
  share_scales(form, scale);
  if (form.as_bytes && is_small_float(form.scale)) {
    dot.scale_b.scale_type = form.scale;
    scale = hide_in_bytes(scale, n);
  }
  dot.scale_b.scale = add_operand(graph, "scale", scale, problem.constant_weight);
  if (form.zero == DType::kUndefined) return;
  ReferenceTensor zero = random_tensor(form.zero, scale_dims, random, 4);
  for (int64_t i = 0; form.whole_zero && i < zero.elements(); ++i) {
    zero.set(i, std::floor(std::abs(zero.number(i))));
  }
  if (form.as_bytes && is_integer(form.zero)) zero = hide_in_bytes(zero, n);
  dot.scale_b.zero_point = add_operand(graph, "zero", zero, problem.constant_weight);
}

// What the rows are scaled by; those that a Run brings are inputs behind the rows.
void add_left_scales(ir::Graph& graph, const DotProblem& problem, ir::ScaledDot& dot,
                     std::mt19937& random) {
  const LeftForm& left = *problem.left;
  const bool is_constant = left.block == 0 && !left.per_row;
  dot.scale_a.block = left.block;
  dot.scale_a.per_channel = !is_constant;
  if (is_constant) {
    dot.scale_a.scale = add_operand(graph, "a_scale", random_scale(left.scale, {}, random), true);
  } else {
    ir::Value scale;
    scale.name = "a_scale";
    scale.dtype = left.scale;
    scale.shape = Shape{graph.value(dot.a).shape->front()};
    if (left.block > 0) scale.shape->push_back((problem.size.k + left.block - 1) / left.block);
    dot.scale_a.scale = graph.add_input(std::move(scale));
  }
  if (left.zero == DType::kUndefined) return;
  dot.scale_a.zero_point = add_operand(graph, "a_zero", random_tensor(left.zero, {}, random), true);
}

// relu(dot) + residual, as an epilogue body.
std::shared_ptr<const ir::Graph> relu_and_residual(DType dtype, const Shape& shape) {
  auto body = std::make_shared<ir::Graph>();
  body->name = "epilogue";
  const auto value = [&](const char* name) {
    ir::Value v;
    v.name = name;
    v.dtype = dtype;
    v.shape = shape;
    return v;
  };
  const ValueId x = body->add_input(value("x")), residual = body->add_input(value("residual"));
  const ValueId zero = body->add_constant("zero", ir::Tensor::of(dtype, {}, {0}));
  const ValueId relu = body->add_value(value("relu")), sum = body->add_value(value("sum"));
  ir::Node max, add;
  max.op = "Max", max.inputs = {x, zero}, max.outputs = {relu};
  add.op = "Add", add.inputs = {relu, residual}, add.outputs = {sum};
  body->add_node(std::move(max));
  body->add_node(std::move(add));
  body->add_output(sum);
  return body;
}

}  // namespace

std::span<const DotForm> dot_forms() { return kForms; }
std::span<const LeftForm> left_forms() { return kLeftForms; }

ReferenceTensor random_tensor(DType dtype, std::vector<int64_t> dims, std::mt19937& random,
                              double spread) {
  ReferenceTensor tensor = ReferenceTensor::zeros(dtype, std::move(dims));
  const int bits = bit_width(dtype);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    if (!tensor.is_real()) {
      tensor.set_integer(i, static_cast<int64_t>(random() >> (32 - std::min(bits, 31))));
    } else if (bits > 8) {
      const double value = decode(dtype, encode(dtype, spread * uniform(random)));
      tensor.set(i, dtype == DType::kF32 ? without_tie(static_cast<float>(value)) : value);
    } else {
      // Small floats: any code that is a number.
      double value = NAN;
      while (!std::isfinite(value)) value = decode(dtype, random() & ((1u << bits) - 1));
      tensor.set(i, value);
    }
  }
  if (dtype == DType::kBool) {
    for (int64_t& bit : tensor.integers) bit &= 1;
  }
  return tensor;
}

ir::ValueId add_dot(ir::Graph& graph, ir::ValueId a, const DotProblem& problem,
                    std::mt19937& random) {
  ir::ScaledDot dot;
  dot.a = a;
  dot.result = problem.activation;
  if (problem.left) add_left_scales(graph, problem, dot, random);
  add_weight(graph, problem, dot, random);
  const Shape shape{graph.value(a).shape->front(), problem.size.n};
  ir::Node node;
  if (problem.end == DotEnd::kBias) {
    const ReferenceTensor bias = random_tensor(problem.activation, {problem.size.n}, random);
    dot.bias = add_operand(graph, "bias", bias, true);
  }
  if (problem.end == DotEnd::kAlpha) {
    dot.alpha = add_operand(graph, "alpha", ReferenceTensor::of(DType::kF32, {}, {0.37}), true);
    dot.alpha_constant = 0.5f;
  }
  if (problem.end == DotEnd::kBody) {
    ir::Value residual;
    residual.name = "residual";
    residual.dtype = problem.activation;
    residual.shape = shape;
    dot.extra = {graph.add_input(std::move(residual))};
    node.body = relu_and_residual(problem.activation, shape);
  }
  dot.write_to(node);
  node.name = "dot";
  node.outputs = {add_value(graph, "y", problem.activation, shape)};
  const ir::ValueId y = node.outputs[0];
  graph.add_node(std::move(node));
  return y;
}

ir::ValueId add_rows(ir::Graph& graph, DType type, int64_t k, std::optional<int64_t> rows) {
  ir::Value a;
  a.name = "a";
  a.dtype = type;
  a.shape = Shape{rows ? Dim(*rows) : Dim::symbol("m"), k};
  return graph.add_input(std::move(a));
}

ir::Graph build_dot(const DotProblem& problem, std::mt19937& random, std::optional<int64_t> rows) {
  ir::Graph graph;
  graph.name = "dot";
  const DType numbers = problem.rows.value_or(problem.activation);
  const DType type = problem.left ? problem.left->codes : numbers;
  const ir::ValueId a = add_rows(graph, type, problem.size.k, rows);
  graph.add_output(add_dot(graph, a, problem, random));
  return graph;
}

std::vector<ReferenceTensor> dot_inputs(const ir::Graph& graph, int64_t m, std::mt19937& random) {
  std::vector<ReferenceTensor> inputs;
  for (const ir::ValueId id : graph.inputs()) {
    const ir::Value& value = graph.value(id);
    std::vector<int64_t> dims;
    for (const Dim& dim : *value.shape)
      dims.push_back(dim.evaluate([&](std::string_view) { return m; }));
    const bool scale = value.name.ends_with("scale");
    inputs.push_back(scale ? random_scale(value.dtype, dims, random)
                           : random_tensor(value.dtype, dims, random));
  }
  return inputs;
}

ReferenceTensor magnitudes(const ir::Graph& graph, const std::vector<ReferenceTensor>& inputs,
                           size_t number) {
  const ir::Node& node = graph.node(graph.order().at(number));
  reference::Symbols symbols;
  std::vector<ReferenceTensor> storage;
  storage.reserve(node.inputs.size());
  reference::Call call{graph, node, symbols, false, {}};
  for (const ir::ValueId id : node.inputs) {
    if (id == ir::kNoValue) {
      call.inputs.push_back(nullptr);
      continue;
    }
    const auto& all = graph.inputs();
    const auto at = std::find(all.begin(), all.end(), id);
    storage.push_back(at != all.end() ? inputs[static_cast<size_t>(at - all.begin())]
                                      : ReferenceTensor::from(*graph.value(id).constant));
    call.inputs.push_back(&storage.back());
  }
  reference::DotOperands operands = reference::scaled_dot_operands(call);
  for (double& value : operands.a.real) value = std::fabs(value);
  for (double& value : operands.b.real) value = std::fabs(value);
  return reference::dot(operands.a, operands.b, DType::kF64);
}

Tolerance dot_tolerance(const DotProblem& problem, const ReferenceTensor& sums) {
  const double per_sum = std::sqrt(static_cast<double>(problem.size.k)) * std::ldexp(1, -22);
  const double u = unit_roundoff(problem.activation);
  return [=](size_t, int64_t index, double expected) {
    return per_sum * sums.number(index) + u * std::fabs(expected) +
           (problem.end == DotEnd::kPlain ? 0 : std::ldexp(1, -22));
  };
}

std::string describe(const DotProblem& p) {
  const std::string left = p.left ? std::string(p.left->name) + " rows x " : "";
  return left + std::string(p.form.name) + " " + std::string(name(p.activation)) +
         " n=" + std::to_string(p.size.n) + " k=" + std::to_string(p.size.k) +
         " end=" + std::to_string(static_cast<int>(p.end)) +
         (p.constant_weight ? "" : " runtime weight");
}

double error_of(const DotProblem& problem, double magnitude) {
  const double rounded = is_integer(problem.form.element) ? unit_roundoff(problem.activation) : 0;
  const double summed = std::sqrt(static_cast<double>(problem.size.k)) * std::ldexp(1, -22);
  return (summed + rounded) * magnitude + std::ldexp(1, -22);
}

ir::Graph in_tf32(ir::Graph graph) {
  for (const ir::NodeId id : graph.order()) {
    if (!graph.node(id).is(ir::kScaledDot)) continue;
    ir::Value& b = graph.value(ir::ScaledDot::from(graph.node(id)).b);
    ReferenceTensor weight = ReferenceTensor::from(*b.constant);
    std::ranges::transform(weight.reals, weight.reals.begin(), round_to_tf32);
    b.constant = ir::Tensor::copy(weight.dtype, weight.dims, weight.bytes());
  }
  return graph;
}

std::vector<ReferenceTensor> in_tf32(std::vector<ReferenceTensor> inputs) {
  std::ranges::transform(inputs[0].reals, inputs[0].reals.begin(), round_to_tf32);
  return inputs;
}

ir::ValueId add_node(ir::Graph& graph, const char* op, int version, std::vector<ir::ValueId> inputs,
                     DType dtype) {
  ir::Value result;
  result.name = op;
  result.dtype = dtype;
  result.shape = graph.value(inputs[0]).shape;
  ir::Node node;
  node.op = op;
  node.since_version = version;
  node.inputs = std::move(inputs);
  node.outputs = {graph.add_value(std::move(result))};
  const ir::ValueId output = node.outputs[0];
  graph.add_node(std::move(node));
  return output;
}

}  // namespace tenon::kernels
