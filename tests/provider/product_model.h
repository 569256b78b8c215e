// The smallest model that has a weight to pack and two kernels to compile.
#pragma once

#include <string>

#include "harness.h"
#include "quantized_weight.h"

namespace tenon::testing {

inline std::string product_model() {
  Graph graph;
  graph.input("x", kFloat, {"M", 64}).constant("w", random_floats({64, 32}, 2));
  graph.node("MatMul", {"x", "w"}, {"h"}).node("Softmax", {"h"}, {"y"});
  return model(graph.output("y", kFloat, {"M", 32}));
}

}  // namespace tenon::testing
