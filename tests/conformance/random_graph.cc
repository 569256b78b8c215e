#include "tests/conformance/random_graph.h"

#include <algorithm>
#include <array>
#include <string>

#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

using ir::ValueId;
using reference::ReferenceTensor;

struct Op {
  const char* name;
  int version;
};

constexpr auto kUnary = std::to_array<Op>({
    {"Relu", 14},
    {"Tanh", 13},
    {"Sigmoid", 13},
    {"Erf", 13},
    {"Gelu", 20},
    {"Neg", 13},
    {"Abs", 13},
    {"HardSwish", 14},
    {"Sin", 7},
    {"Cos", 7},
    {"Elu", 6},
    {"Softplus", 1},
    {"LeakyRelu", 16},
    {"Mish", 18},
});
constexpr auto kBinary =
    std::to_array<Op>({{"Add", 14}, {"Sub", 14}, {"Mul", 14}, {"Max", 13}, {"Min", 13}});
constexpr auto kReduce = std::to_array<Op>(
    {{"ReduceSum", 13}, {"ReduceMean", 18}, {"ReduceMax", 18}, {"ReduceMin", 18}});
constexpr auto kNormal = std::to_array<Op>({{"Softmax", 13}, {"LogSoftmax", 13}});

class Builder {
 public:
  explicit Builder(unsigned seed) : random_(seed) {
    result_.graph.name = "random";
    const int64_t channels = std::array{8, 15, 16, 33, 64}[pick(5)];
    pool_.push_back(input("x0", {b_, s_, channels}));
    pool_.push_back(input("x1", pick(2) ? Shape{b_, s_, channels} : Shape{channels}));
    pool_.push_back(input("x2", pick(2) ? Shape{b_, 1, channels} : Shape{s_, 1}));
  }

  RandomGraph build(int ops) {
    while (ops > 0) ops -= step();
    const int outputs = 1 + static_cast<int>(pick(2));
    for (int i = 0; i < outputs; ++i) {
      const Known& value = pool_[pool_.size() - 1 - static_cast<size_t>(i)];
      if (value.produced) result_.graph.add_output(value.id);
    }
    return std::move(result_);
  }

 private:
  struct Known {
    ValueId id;
    Shape shape;
    bool produced = true;
  };

  size_t pick(size_t count) { return random_() % count; }
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(pick(static_cast<size_t>(high - low + 1)));
  }
  // The newest values are the likeliest.
  Known choose() {
    const size_t back = std::min(pick(pool_.size()), pick(pool_.size()));
    return pool_[pool_.size() - 1 - back];
  }

  Known input(const char* name, Shape shape) {
    ir::Value value;
    value.name = name;
    value.dtype = DType::kF32;
    value.shape = shape;
    return {result_.graph.add_input(std::move(value)), std::move(shape), false};
  }

  ValueId constant(const ReferenceTensor& tensor) {
    const std::vector<std::byte> bytes = tensor.bytes();
    return result_.graph.add_constant("c", ir::Tensor::copy(tensor.dtype, tensor.dims, bytes));
  }
  ValueId integers(const std::vector<int64_t>& values) {
    std::vector<double> numbers(values.begin(), values.end());
    return constant(
        ReferenceTensor::of(DType::kI64, {static_cast<int64_t>(values.size())}, numbers));
  }
  ValueId reals(std::vector<int64_t> dims, double spread = 1) {
    return constant(random_tensor(DType::kF32, std::move(dims), random_, spread));
  }

  ValueId emit(const Op& op, std::vector<ValueId> inputs,
               std::map<std::string, ir::Attribute> attributes, DType dtype = DType::kF32) {
    ir::Value value;
    value.name = "v";
    value.dtype = dtype;
    ir::Node node;
    node.op = op.name;
    node.since_version = op.version;
    node.name = op.name;
    node.inputs = std::move(inputs);
    node.attributes = std::move(attributes);
    const ValueId id = result_.graph.add_value(std::move(value));
    node.outputs = {id};
    result_.graph.add_node(std::move(node));
    return id;
  }
  int keep(ValueId id, Shape shape) {
    pool_.push_back({id, std::move(shape)});
    return 1;
  }

  int step() {
    using Step = int (Builder::*)(const Known&);
    constexpr auto kSteps = std::to_array<Step>({&Builder::unary,
                                                 &Builder::unary,
                                                 &Builder::binary,
                                                 &Builder::binary,
                                                 &Builder::binary_constant,
                                                 &Builder::reduce,
                                                 &Builder::normal,
                                                 &Builder::layer_norm,
                                                 &Builder::transpose,
                                                 &Builder::split_axis,
                                                 &Builder::merge_axes,
                                                 &Builder::slice,
                                                 &Builder::concat,
                                                 &Builder::matmul,
                                                 &Builder::quantized_matmul,
                                                 &Builder::self_product,
                                                 &Builder::gather,
                                                 &Builder::clip,
                                                 &Builder::half,
                                                 &Builder::pad});
    return (this->*kSteps[pick(kSteps.size())])(choose());
  }

  int unary(const Known& x) { return keep(emit(kUnary[pick(kUnary.size())], {x.id}, {}), x.shape); }

  int binary(const Known& x) {
    const Known y = choose();
    const std::optional<Shape> shape = broadcast_shapes(x.shape, y.shape);
    // Open dims may clash in a Run: only those that surely fit are joined.
    if (!shape || !fits(x.shape, y.shape)) return 0;
    return keep(emit(kBinary[pick(kBinary.size())], {x.id, y.id}, {}), *shape);
  }
  static bool fits(const Shape& a, const Shape& b) {
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const Dim &x = a[a.size() - 1 - i], &y = b[b.size() - 1 - i];
      if (!(x == y) && !x.is(1) && !y.is(1)) return false;
    }
    return true;
  }

  int binary_constant(const Known& x) {
    std::vector<int64_t> dims;
    if (!x.shape.empty() && x.shape.back().is_constant() && pick(2))
      dims = {x.shape.back().value()};
    return keep(emit(kBinary[pick(kBinary.size())], {x.id, reals(dims)}, {}), x.shape);
  }

  int reduce(const Known& x) {
    if (x.shape.empty()) return 0;
    const auto axis = static_cast<int64_t>(pick(x.shape.size()));
    const bool keepdims = pick(2) != 0;
    Shape shape = x.shape;
    if (keepdims) {
      shape[static_cast<size_t>(axis)] = 1;
    } else {
      shape.erase(shape.begin() + axis);
    }
    return keep(emit(kReduce[pick(kReduce.size())], {x.id, integers({axis})},
                     {{"keepdims", int64_t{keepdims}}}),
                shape);
  }

  int normal(const Known& x) {
    if (x.shape.empty()) return 0;
    const auto axis = static_cast<int64_t>(pick(x.shape.size()));
    return keep(emit(kNormal[pick(kNormal.size())], {x.id}, {{"axis", axis}}), x.shape);
  }

  // Large, so that a row of equal elements does not blow up its rounding.
  static constexpr float kEpsilon = 0.01f;

  int layer_norm(const Known& x) {
    if (x.shape.empty() || !x.shape.back().is_constant()) return 0;
    const std::vector<int64_t> dims{x.shape.back().value()};
    if (pick(2))
      return keep(emit({"RMSNormalization", 23}, {x.id, reals(dims)}, {{"epsilon", kEpsilon}}),
                  x.shape);
    return keep(
        emit({"LayerNormalization", 17}, {x.id, reals(dims), reals(dims)}, {{"epsilon", kEpsilon}}),
        x.shape);
  }

  int transpose(const Known& x) {
    std::vector<int64_t> perm;
    for (size_t i = 0; i < x.shape.size(); ++i) perm.push_back(static_cast<int64_t>(i));
    std::shuffle(perm.begin(), perm.end(), random_);
    Shape shape;
    for (const int64_t axis : perm) shape.push_back(x.shape[static_cast<size_t>(axis)]);
    return keep(emit({"Transpose", 13}, {x.id}, {{"perm", perm}}), shape);
  }

  // [.., 2n, ..] -> [.., 2, n, ..]
  int split_axis(const Known& x) {
    for (size_t axis = 0; axis < x.shape.size() && x.shape.size() < 5; ++axis) {
      const Dim& dim = x.shape[axis];
      if (!dim.is_constant() || dim.value() % 2 != 0 || dim.value() < 4) continue;
      Shape shape = x.shape;
      shape[axis] = 2;
      shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1, dim.value() / 2);
      return reshape(x, shape);
    }
    return 0;
  }
  int merge_axes(const Known& x) {
    if (x.shape.size() < 2) return 0;
    const size_t axis = pick(x.shape.size() - 1);
    Shape shape = x.shape;
    shape[axis] = shape[axis] * shape[axis + 1];
    shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1);
    return reshape(x, shape);
  }
  // One open dim at most can be written as -1; dims that stay in place as 0.
  int reshape(const Known& x, const Shape& shape) {
    std::vector<int64_t> asked;
    int open = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      const bool same = i < x.shape.size() && x.shape[i] == shape[i];
      asked.push_back(same ? 0 : shape[i].is_constant() ? shape[i].value() : -1);
      open += asked.back() == -1;
    }
    if (open > 1) return 0;
    return keep(emit({"Reshape", 14}, {x.id, integers(asked)}, {}), shape);
  }

  int slice(const Known& x) {
    for (size_t axis = x.shape.size(); axis-- > 0;) {
      if (!x.shape[axis].is_constant() || x.shape[axis].value() < 3) continue;
      const int64_t size = x.shape[axis].value(), first = between(0, size - 2),
                    last = between(first + 1, size);
      const int64_t stride = between(1, 2);
      const bool backward = pick(4) == 0;
      Shape shape = x.shape;
      const int64_t span = last - first;
      shape[axis] = (span + stride - 1) / stride;
      const std::vector<ValueId> inputs{
          x.id, integers({backward ? last - 1 : first}),
          integers({backward ? (first == 0 ? -size - 1 : first - 1) : last}),
          integers({static_cast<int64_t>(axis)}), integers({backward ? -stride : stride})};
      return keep(emit({"Slice", 13}, inputs, {}), shape);
    }
    return 0;
  }

  int concat(const Known& x) {
    const Known y = choose();
    if (x.shape.empty() || y.shape.size() != x.shape.size()) return 0;
    for (size_t axis = 0; axis < x.shape.size(); ++axis) {
      bool same = true;
      for (size_t i = 0; i < x.shape.size(); ++i) same &= i == axis || x.shape[i] == y.shape[i];
      if (!same) continue;
      Shape shape = x.shape;
      shape[axis] = shape[axis] + y.shape[axis];
      return keep(emit({"Concat", 13}, {x.id, y.id}, {{"axis", static_cast<int64_t>(axis)}}),
                  shape);
    }
    return 0;
  }

  int matmul(const Known& x) {
    if (x.shape.size() < 2 || !x.shape.back().is_constant() || x.shape.back().is(0)) return 0;
    const int64_t k = x.shape.back().value(), n = between(1, 40);
    return product(x, reals({k, n}, 0.5), n);
  }
  int quantized_matmul(const Known& x) {
    if (x.shape.size() < 2 || !x.shape.back().is_constant()) return 0;
    const int64_t k = x.shape.back().value(), n = between(1, 40);
    if (k % 16 != 0) return 0;
    const ValueId codes = constant(random_tensor(DType::kI4, {k, n}, random_));
    const ValueId scale = reals({k / 16, n}, 0.1);
    const ValueId weight = emit({"DequantizeLinear", 21}, {codes, scale},
                                {{"axis", int64_t{0}}, {"block_size", int64_t{16}}});
    return product(x, weight, n);
  }
  int product(const Known& x, ValueId weight, int64_t n) {
    Shape shape = x.shape;
    shape.back() = n;
    return keep(emit({"MatMul", 13}, {x.id, weight}, {}), shape);
  }

  // x xᵀ over the last two axes: both operands arrive at Run.
  int self_product(const Known& x) {
    if (x.shape.size() < 2) return 0;
    std::vector<int64_t> perm;
    for (size_t i = 0; i < x.shape.size(); ++i) perm.push_back(static_cast<int64_t>(i));
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
    const ValueId turned = emit({"Transpose", 13}, {x.id}, {{"perm", perm}});
    Shape shape = x.shape;
    shape.back() = shape[shape.size() - 2];
    return keep(emit({"Tanh", 13}, {emit({"MatMul", 13}, {x.id, turned}, {})}, {}), shape);
  }

  int gather(const Known& x) {
    for (size_t axis = 0; axis < x.shape.size(); ++axis) {
      if (!x.shape[axis].is_constant() || x.shape[axis].is(0)) continue;
      const int64_t size = x.shape[axis].value(), count = between(1, 5);
      std::vector<int64_t> indices;
      for (int64_t i = 0; i < count; ++i) indices.push_back(between(-size, size - 1));
      Shape shape = x.shape;
      shape[axis] = count;
      return keep(
          emit({"Gather", 13}, {x.id, integers(indices)}, {{"axis", static_cast<int64_t>(axis)}}),
          shape);
    }
    return 0;
  }

  int clip(const Known& x) {
    const ValueId low = constant(ReferenceTensor::of(DType::kF32, {}, {-0.75}));
    const ValueId high = constant(ReferenceTensor::of(DType::kF32, {}, {1.5}));
    return keep(emit({"Clip", 13}, {x.id, low, high}, {}), x.shape);
  }

  int half(const Known& x) {
    if (pick(3) != 0) return 0;
    result_.rounds = true;
    const ValueId narrow = emit({"Cast", 13}, {x.id}, {{"to", int64_t{10}}}, DType::kF16);
    return keep(emit({"Cast", 13}, {narrow}, {{"to", int64_t{1}}}), x.shape);
  }

  int pad(const Known& x) {
    if (x.shape.empty() || pick(2)) return 0;
    std::vector<int64_t> pads;
    Shape shape = x.shape;
    for (size_t i = 0; i < 2 * shape.size(); ++i) {
      pads.push_back(between(0, 2));
      Dim& dim = shape[i % shape.size()];
      dim = dim + pads.back();
    }
    return keep(
        emit({"Pad", 18}, {x.id, integers(pads), reals({})}, {{"mode", std::string("constant")}}),
        shape);
  }

  std::mt19937 random_;
  Dim b_ = Dim::symbol("b"), s_ = Dim::symbol("s");
  RandomGraph result_;
  std::vector<Known> pool_;
};

}  // namespace

RandomGraph random_graph(unsigned seed, int ops) { return Builder(seed).build(ops); }

std::vector<ReferenceTensor> random_inputs(const ir::Graph& graph, int64_t b, int64_t s,
                                           std::mt19937& random) {
  std::vector<ReferenceTensor> inputs;
  for (const ValueId id : graph.inputs()) {
    std::vector<int64_t> dims;
    for (const Dim& dim : *graph.value(id).shape) {
      dims.push_back(dim.evaluate([&](std::string_view symbol) { return symbol == "b" ? b : s; }));
    }
    inputs.push_back(random_tensor(DType::kF32, dims, random, 2));
  }
  return inputs;
}

}  // namespace tenon::kernels
