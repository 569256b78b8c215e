// The value of one node over constants, for the ops that exporters leave between them.
#pragma once

#include <functional>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon::folding {

struct Operands {
  const ir::Node& node;
  std::vector<ir::TensorPtr> inputs;  // null where absent
  DType dtype;                        // of the result
  std::vector<int64_t> dims;          // of the result
};

using Evaluate = ir::TensorPtr (*)(const Operands&);  // null: cannot be told here

// null when the op is not one that folds.
Evaluate find_arithmetic(std::string_view op);
Evaluate find_movement(std::string_view op);

// The element of an operand of `dims` that stands at flat position `index` of the result,
// right-aligned.
class BroadcastIndex {
 public:
  BroadcastIndex(const std::vector<int64_t>& dims, const std::vector<int64_t>& result);
  int64_t operator()(int64_t index) const;

 private:
  std::vector<int64_t> result_, strides_;
};

// A tensor whose element `i` has the code that `code(i)` gives.
ir::TensorPtr tensor_of_codes(DType dtype, const std::vector<int64_t>& dims,
                              const std::function<uint64_t(int64_t)>& code);

}  // namespace tenon::folding
