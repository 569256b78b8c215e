// The closed set of ops that a Loop body may hold. Composite ONNX ops (Gelu, LayerNormalization,
// Softmax, …) are decomposed into these, so that a kernel emitter knows a few dozen ops and every
// spelling of a norm fuses alike.
#pragma once

#include <span>
#include <string_view>

namespace tenon::ir {

enum class PrimitiveClass {
  kPointwise,  // same shape in and out after broadcasting (Add, Erf, Where, Cast, Dequantize, …)
  kReduction,  // ReduceSum/Max/Min/Prod/… with axes attribute and keepdims=1
  kMovement,   // Transpose, Slice, Expand, Gather, Concat, …: only changes which element is read
};

struct Primitive {
  std::string_view op;
  PrimitiveClass kind;
  int inputs;      // number of tensor operands; -1: variadic
  bool expensive;  // not worth computing twice (a transcendental)
};

std::span<const Primitive> primitives();
const Primitive* find_primitive(std::string_view op);  // null when it is not one
bool is_primitive(std::string_view op, PrimitiveClass kind);

}  // namespace tenon::ir
