#include "graph_partitioner/ir/primitives.h"

#include <algorithm>
#include <array>

namespace tenon::ir {
namespace {

constexpr auto kPointwise = PrimitiveClass::kPointwise;
constexpr auto kReduction = PrimitiveClass::kReduction;
constexpr auto kMovement = PrimitiveClass::kMovement;

constexpr auto kTable = std::to_array<Primitive>({
    // op, class, operands, expensive
    {"Add", kPointwise, 2, false},
    {"Sub", kPointwise, 2, false},
    {"Mul", kPointwise, 2, false},
    {"Div", kPointwise, 2, false},
    {"Mod", kPointwise, 2, true},
    {"Pow", kPointwise, 2, true},
    {"Min", kPointwise, 2, false},
    {"Max", kPointwise, 2, false},
    {"And", kPointwise, 2, false},
    {"Or", kPointwise, 2, false},
    {"Xor", kPointwise, 2, false},
    {"Not", kPointwise, 1, false},
    {"BitwiseAnd", kPointwise, 2, false},
    {"BitwiseOr", kPointwise, 2, false},
    {"BitwiseXor", kPointwise, 2, false},
    {"BitwiseNot", kPointwise, 1, false},
    {"BitShift", kPointwise, 2, false},
    {"Neg", kPointwise, 1, false},
    {"Abs", kPointwise, 1, false},
    {"Sign", kPointwise, 1, false},
    {"Floor", kPointwise, 1, false},
    {"Ceil", kPointwise, 1, false},
    {"Round", kPointwise, 1, false},
    {"Sqrt", kPointwise, 1, false},
    {"Reciprocal", kPointwise, 1, false},
    {"Exp", kPointwise, 1, true},
    {"Log", kPointwise, 1, true},
    {"Sin", kPointwise, 1, true},
    {"Cos", kPointwise, 1, true},
    {"Tan", kPointwise, 1, true},
    {"Asin", kPointwise, 1, true},
    {"Acos", kPointwise, 1, true},
    {"Atan", kPointwise, 1, true},
    {"Sinh", kPointwise, 1, true},
    {"Cosh", kPointwise, 1, true},
    {"Tanh", kPointwise, 1, true},
    {"Asinh", kPointwise, 1, true},
    {"Acosh", kPointwise, 1, true},
    {"Atanh", kPointwise, 1, true},
    {"Erf", kPointwise, 1, true},
    {"Equal", kPointwise, 2, false},
    {"Less", kPointwise, 2, false},
    {"LessOrEqual", kPointwise, 2, false},
    {"Greater", kPointwise, 2, false},
    {"GreaterOrEqual", kPointwise, 2, false},
    {"Where", kPointwise, 3, false},
    {"IsNaN", kPointwise, 1, false},
    {"IsInf", kPointwise, 1, false},
    {"Cast", kPointwise, 1, false},
    {"tenon::DimValue", kPointwise, 0, false},
    {"tenon::Position", kPointwise, 0, false},
    {"tenon::Quantize", kPointwise, -1, false},
    {"ReduceSum", kReduction, 1, true},
    {"ReduceMean", kReduction, 1, true},
    {"ReduceMax", kReduction, 1, true},
    {"ReduceMin", kReduction, 1, true},
    {"ReduceProd", kReduction, 1, true},
    {"ArgMax", kReduction, 1, true},
    {"ArgMin", kReduction, 1, true},
    {"Transpose", kMovement, 1, false},
    {"tenon::Slice", kMovement, 1, false},
    {"Expand", kMovement, 1, false},
    {"tenon::BlockExpand", kMovement, 1, false},
    {"Gather", kMovement, 2, false},
    {kPick, kMovement, 2, false},
    {"tenon::Pad", kMovement, 2, false},
    {"Reshape", kMovement, 1, false},
});

}  // namespace

std::span<const Primitive> primitives() { return kTable; }

const Primitive* find_primitive(std::string_view op) {
  const auto found =
      std::find_if(kTable.begin(), kTable.end(), [&](const Primitive& p) { return p.op == op; });
  return found == kTable.end() ? nullptr : &*found;
}

bool is_primitive(std::string_view op, PrimitiveClass kind) {
  const Primitive* primitive = find_primitive(op);
  return primitive != nullptr && primitive->kind == kind;
}

}  // namespace tenon::ir
