#include "codegen/tile/ir.h"

#include <array>

namespace tenon::codegen {

namespace {

constexpr std::array kFnNames = std::to_array<std::string_view>({
    "none",
    "neg",
    "abs",
    "not",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "floor",
    "ceil",
    "trunc",
    "round",
    "exp",
    "exp2",
    "log",
    "log2",
    "sin",
    "cos",
    "tan",
    "tanh",
    "erf",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "is_nan",
    "is_inf",
    "sign",
    "dequantize_f8e4m3fn",
    "dequantize_f8e4m3fnuz",
    "dequantize_f8e5m2",
    "dequantize_f8e5m2fnuz",
    "dequantize_f8e8m0",
    "dequantize_f4e2m1",
    "quantize_f8e4m3fn",
    "quantize_f8e4m3fnuz",
    "quantize_f8e5m2",
    "quantize_f8e5m2fnuz",
    "quantize_f8e8m0",
    "quantize_f4e2m1",
    "add",
    "sub",
    "mul",
    "div",
    "rem",
    "mod",
    "min",
    "max",
    "pow",
    "atan2",
    "and",
    "or",
    "xor",
    "shift_left",
    "shift_right",
    "fma",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
});
static_assert(kFnNames.size() == static_cast<size_t>(Fn::kGreaterEqual) + 1);

}  // namespace

std::string_view name(Fn fn) { return kFnNames.at(static_cast<size_t>(fn)); }

int64_t encode_attribute(EncodeRule rule) {
  return (rule.saturate ? 1 : 0) | static_cast<int64_t>(rule.round) << 1;
}

EncodeRule encode_rule(int64_t attribute) {
  return {.saturate = (attribute & 1) != 0, .round = static_cast<RoundMode>(attribute >> 1)};
}

int64_t Type::elements() const {
  int64_t count = 1;
  for (int size : shape) count *= size;
  return count;
}

}  // namespace tenon::codegen
