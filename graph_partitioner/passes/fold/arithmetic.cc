#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/convert.h"
#include "graph_partitioner/passes/fold/evaluate.h"

namespace tenon::folding {
namespace {

// Floats are computed in double and rounded once; integers keep every bit.
using RealOp = double (*)(double, double);
using IntegerOp = int64_t (*)(int64_t, int64_t);

int64_t wrapping(uint64_t value) { return static_cast<int64_t>(value); }
uint64_t bits(int64_t value) { return static_cast<uint64_t>(value); }

struct Binary {
  std::string_view op;
  RealOp real;        // null: not for floats
  IntegerOp integer;  // null: not for integers and booleans
  bool divides = false;
};

constexpr auto kBinary = std::to_array<Binary>({
    {"Add", [](double a, double b) { return a + b; },
     [](int64_t a, int64_t b) { return wrapping(bits(a) + bits(b)); }},
    {"Sub", [](double a, double b) { return a - b; },
     [](int64_t a, int64_t b) { return wrapping(bits(a) - bits(b)); }},
    {"Mul", [](double a, double b) { return a * b; },
     [](int64_t a, int64_t b) { return wrapping(bits(a) * bits(b)); }},
    {"Div", [](double a, double b) { return a / b; },
     [](int64_t a, int64_t b) { return b == -1 ? wrapping(-bits(a)) : a / b; }, true},
    {"Mod", nullptr,
     [](int64_t a, int64_t b) {
       if (b == -1) return int64_t{0};
       const int64_t rest = a % b;
       return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
     },
     true},
    {"Pow", [](double a, double b) { return std::pow(a, b); }, nullptr},
    {"Min", [](double a, double b) { return std::isnan(a) || a < b ? a : b; },
     [](int64_t a, int64_t b) { return std::min(a, b); }},
    {"Max", [](double a, double b) { return std::isnan(a) || a > b ? a : b; },
     [](int64_t a, int64_t b) { return std::max(a, b); }},
    {"Equal", [](double a, double b) { return double(a == b); },
     [](int64_t a, int64_t b) { return int64_t{a == b}; }},
    {"Less", [](double a, double b) { return double(a < b); },
     [](int64_t a, int64_t b) { return int64_t{a < b}; }},
    {"LessOrEqual", [](double a, double b) { return double(a <= b); },
     [](int64_t a, int64_t b) { return int64_t{a <= b}; }},
    {"Greater", [](double a, double b) { return double(a > b); },
     [](int64_t a, int64_t b) { return int64_t{a > b}; }},
    {"GreaterOrEqual", [](double a, double b) { return double(a >= b); },
     [](int64_t a, int64_t b) { return int64_t{a >= b}; }},
    {"And", nullptr, [](int64_t a, int64_t b) { return int64_t{a && b}; }},
    {"Or", nullptr, [](int64_t a, int64_t b) { return int64_t{a || b}; }},
    {"Xor", nullptr, [](int64_t a, int64_t b) { return int64_t{!a != !b}; }},
});

struct Unary {
  std::string_view op;
  double (*real)(double);
  int64_t (*integer)(int64_t);
};

constexpr auto kUnary = std::to_array<Unary>({
    {"Neg", [](double a) { return -a; }, [](int64_t a) { return wrapping(-bits(a)); }},
    {"Abs", [](double a) { return std::fabs(a); },
     [](int64_t a) { return a < 0 ? wrapping(-bits(a)) : a; }},
    {"Not", nullptr, [](int64_t a) { return int64_t{!a}; }},
    {"Sqrt", [](double a) { return std::sqrt(a); }, nullptr},
    {"Reciprocal", [](double a) { return 1.0 / a; }, nullptr},
    {"Exp", [](double a) { return std::exp(a); }, nullptr},
    {"Log", [](double a) { return std::log(a); }, nullptr},
    {"Sin", [](double a) { return std::sin(a); }, nullptr},
    {"Cos", [](double a) { return std::cos(a); }, nullptr},
    {"Tanh", [](double a) { return std::tanh(a); }, nullptr},
    {"Floor", [](double a) { return std::floor(a); }, nullptr},
    {"Ceil", [](double a) { return std::ceil(a); }, nullptr},
    {"Round", [](double a) { return std::nearbyint(a); }, nullptr},
});

bool is_whole(DType dtype) { return is_integer(dtype) || dtype == DType::kBool; }

// Unsigned 64-bit values do not order as signed ones.
bool folds(DType dtype) { return (is_whole(dtype) && dtype != DType::kU64) || is_floating(dtype); }

uint64_t integer_code(DType dtype, int64_t value) {
  const int width = bit_width(dtype);
  return width == 64 ? bits(value) : bits(value) & ((uint64_t{1} << width) - 1);
}

template <typename Table>
auto find_in(const Table& table, std::string_view op) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.op == op; });
  return found == table.end() ? nullptr : &*found;
}

ir::TensorPtr evaluate_binary(const Operands& operands) {
  if (operands.inputs.size() != 2 || !operands.inputs[0] || !operands.inputs[1]) return nullptr;
  const Binary& op = *find_in(kBinary, operands.node.op);
  const ir::Tensor &a = *operands.inputs[0], &b = *operands.inputs[1];
  if (a.dtype != b.dtype || !folds(a.dtype) || !folds(operands.dtype)) return nullptr;
  const BroadcastIndex at_a(a.dims, operands.dims), at_b(b.dims, operands.dims);
  if (!is_whole(a.dtype)) {
    if (!op.real) return nullptr;
    return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
      const double value =
          op.real(load_element(a.dtype, a.data, at_a(i)), load_element(b.dtype, b.data, at_b(i)));
      return encode(operands.dtype, value);
    });
  }
  if (!op.integer || operands.node.integer("fmod", 0) != 0) return nullptr;
  for (int64_t i = 0; op.divides && i < b.elements(); ++i) {
    if (load_integer(b.dtype, b.data, i) == 0) return nullptr;
  }
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    const int64_t value =
        op.integer(load_integer(a.dtype, a.data, at_a(i)), load_integer(b.dtype, b.data, at_b(i)));
    return integer_code(operands.dtype, value);
  });
}

ir::TensorPtr evaluate_unary(const Operands& operands) {
  if (operands.inputs.size() != 1 || !operands.inputs[0]) return nullptr;
  const Unary& op = *find_in(kUnary, operands.node.op);
  const ir::Tensor& a = *operands.inputs[0];
  if (a.dtype != operands.dtype || !folds(a.dtype) || a.dims != operands.dims) return nullptr;
  if (is_whole(a.dtype)) {
    if (!op.integer) return nullptr;
    return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
      return integer_code(a.dtype, op.integer(load_integer(a.dtype, a.data, i)));
    });
  }
  if (!op.real) return nullptr;
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    return encode(a.dtype, op.real(load_element(a.dtype, a.data, i)));
  });
}

ir::TensorPtr evaluate_cast(const Operands& operands) {
  if (operands.inputs.empty() || !operands.inputs[0]) return nullptr;
  const ir::Tensor& a = *operands.inputs[0];
  const bool known = bit_width(a.dtype) != 0 && bit_width(operands.dtype) != 0;
  // Only e8m0 has a round_mode of its own; newer opsets spell its default out for every type.
  const bool rounds_to_nearest = operands.dtype != DType::kF8E8M0;
  if (!known || a.dims != operands.dims || !rounds_to_nearest) return nullptr;
  const EncodeRule rule{operands.node.integer("saturate", 1) != 0, RoundMode::kNearestEven};
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    if (a.dtype == operands.dtype) return load_code(a.dtype, a.data, i);
    if (is_whole(a.dtype) && operands.dtype == DType::kBool) {
      return uint64_t{load_integer(a.dtype, a.data, i) != 0};
    }
    if (is_whole(a.dtype) && is_integer(operands.dtype)) {
      return integer_code(operands.dtype, load_integer(a.dtype, a.data, i));
    }
    return encode(operands.dtype, load_element(a.dtype, a.data, i), rule);
  });
}

ir::TensorPtr evaluate_where(const Operands& operands) {
  const auto& in = operands.inputs;
  if (in.size() != 3 || !in[0] || !in[1] || !in[2] || in[1]->dtype != in[2]->dtype) return nullptr;
  if (in[0]->dtype != DType::kBool) return nullptr;
  const BroadcastIndex at_condition(in[0]->dims, operands.dims), at_yes(in[1]->dims, operands.dims),
      at_no(in[2]->dims, operands.dims);
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    const bool yes = load_integer(DType::kBool, in[0]->data, at_condition(i)) != 0;
    return yes ? load_code(in[1]->dtype, in[1]->data, at_yes(i))
               : load_code(in[2]->dtype, in[2]->data, at_no(i));
  });
}

ir::TensorPtr evaluate_range(const Operands& operands) {
  const auto& in = operands.inputs;
  if (in.size() != 3 || !in[0] || !in[2] || in[0]->elements() != 1 || in[2]->elements() != 1) {
    return nullptr;
  }
  if (is_whole(operands.dtype)) {
    const int64_t start = load_integer(in[0]->dtype, in[0]->data, 0);
    const int64_t step = load_integer(in[2]->dtype, in[2]->data, 0);
    return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
      return integer_code(operands.dtype, wrapping(bits(start) + bits(i) * bits(step)));
    });
  }
  const double start = load_element(in[0]->dtype, in[0]->data, 0);
  const double step = load_element(in[2]->dtype, in[2]->data, 0);
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    return encode(operands.dtype, start + static_cast<double>(i) * step);
  });
}

// The place along an axis of each element.
ir::TensorPtr evaluate_position(const Operands& operands) {
  const auto axis = static_cast<size_t>(operands.node.integer("axis", 0));
  if (axis >= operands.dims.size()) return nullptr;
  int64_t stride = 1;
  for (size_t i = axis + 1; i < operands.dims.size(); ++i) stride *= operands.dims[i];
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    return integer_code(operands.dtype, i / stride % operands.dims[axis]);
  });
}

struct Special {
  std::string_view op;
  Evaluate evaluate;
};
constexpr auto kSpecial = std::to_array<Special>({{"Cast", evaluate_cast},
                                                  {"Where", evaluate_where},
                                                  {"Range", evaluate_range},
                                                  {"tenon::Position", evaluate_position}});

}  // namespace

Evaluate find_arithmetic(std::string_view op) {
  if (find_in(kBinary, op)) return evaluate_binary;
  if (find_in(kUnary, op)) return evaluate_unary;
  const Special* special = find_in(kSpecial, op);
  return special ? special->evaluate : nullptr;
}

}  // namespace tenon::folding
