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
// The axis that is picked along goes, and what is left of the data broadcasts with the indices:
// data [n,c,1,h,w] by indices [n,1,p,1] along axis 3 is data[n,c,0,indices[n,0,p,0],w].
inline constexpr std::string_view kPick = "tenon::Pick";

// Whether its second operand is a list of indices, which stays in memory.
inline bool reads_indices(std::string_view op) { return op == "Gather" || op == kPick; }

const Primitive* find_primitive(std::string_view op);  // null when it is not one
bool is_primitive(std::string_view op, PrimitiveClass kind);

}  // namespace tenon::ir
