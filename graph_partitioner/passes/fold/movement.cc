#include <algorithm>
#include <array>

#include "base/convert.h"
#include "base/error.h"
#include "graph_partitioner/passes/fold/evaluate.h"
#include "graph_partitioner/passes/shape_rules/rule.h"

namespace tenon::folding {
namespace {

std::vector<int64_t> strides_of(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  return strides;
}

std::vector<int64_t> coordinates(int64_t index, const std::vector<int64_t>& dims) {
  std::vector<int64_t> result(dims.size());
  for (size_t i = dims.size(); i-- > 0;) {
    result[i] = index % dims[i];
    index /= dims[i];
  }
  return result;
}

// Dims of a bad model may promise more than is there.
uint64_t code_at(const ir::Tensor& tensor, int64_t index) {
  if (index < 0 || index >= tensor.elements()) throw UserError("dims contradict a constant");
  return load_code(tensor.dtype, tensor.data, index);
}

ir::TensorPtr same_elements(const Operands& operands) {
  const ir::Tensor& data = *operands.inputs[0];
  return tensor_of_codes(operands.dtype, operands.dims,
                         [&](int64_t i) { return code_at(data, i); });
}

ir::TensorPtr expand(const Operands& operands) {
  const ir::Tensor& data = *operands.inputs[0];
  const BroadcastIndex at(data.dims, operands.dims);
  return tensor_of_codes(operands.dtype, operands.dims,
                         [&](int64_t i) { return code_at(data, at(i)); });
}

ir::TensorPtr transpose(const Operands& operands) {
  const ir::Tensor& data = *operands.inputs[0];
  std::vector<int64_t> perm = operands.node.integers("perm");
  if (perm.empty()) {
    for (size_t i = data.dims.size(); i-- > 0;) perm.push_back(static_cast<int64_t>(i));
  }
  if (perm.size() != data.dims.size() || operands.dims.size() != perm.size()) return nullptr;
  const std::vector<int64_t> strides = strides_of(data.dims);
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    const auto at = coordinates(i, operands.dims);
    int64_t from = 0;
    for (size_t d = 0; d < at.size(); ++d) from += at[d] * strides.at(static_cast<size_t>(perm[d]));
    return code_at(data, from);
  });
}

ir::TensorPtr tile(const Operands& operands) {
  const ir::Tensor& data = *operands.inputs[0];
  if (data.dims.size() != operands.dims.size()) return nullptr;
  const std::vector<int64_t> strides = strides_of(data.dims);
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    const auto at = coordinates(i, operands.dims);
    int64_t from = 0;
    for (size_t d = 0; d < at.size(); ++d) from += at[d] % data.dims[d] * strides[d];
    return code_at(data, from);
  });
}

ir::TensorPtr concat(const Operands& operands) {
  const auto axis = normal_axis(operands.node.integer("axis", 0), operands.dims.size());
  if (!axis) return nullptr;
  int64_t total = 0;
  for (const auto& input : operands.inputs) {
    if (!input || input->dims.size() != operands.dims.size()) return nullptr;
    total += input->dims[*axis];
  }
  if (total != operands.dims[*axis]) return nullptr;
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    auto at = coordinates(i, operands.dims);
    size_t part = 0;
    while (at[*axis] >= operands.inputs[part]->dims[*axis]) {
      at[*axis] -= operands.inputs[part++]->dims[*axis];
    }
    const ir::Tensor& data = *operands.inputs[part];
    const auto strides = strides_of(data.dims);
    int64_t from = 0;
    for (size_t d = 0; d < at.size(); ++d) from += at[d] * strides[d];
    return code_at(data, from);
  });
}

ir::TensorPtr gather(const Operands& operands) {
  if (operands.inputs.size() != 2 || !operands.inputs[1]) return nullptr;
  const ir::Tensor &data = *operands.inputs[0], &indices = *operands.inputs[1];
  const auto axis = normal_axis(operands.node.integer("axis", 0), data.dims.size());
  if (!axis || !is_integer(indices.dtype)) return nullptr;
  for (int64_t i = 0; i < indices.elements(); ++i) {
    const int64_t index = load_integer(indices.dtype, indices.data, i);
    if (index < -data.dims[*axis] || index >= data.dims[*axis]) return nullptr;
  }
  int64_t inner = 1;
  for (size_t d = *axis + 1; d < data.dims.size(); ++d) inner *= data.dims[d];
  const int64_t picks = indices.elements(), size = data.dims[*axis];
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    const int64_t pick = load_integer(indices.dtype, indices.data, i / inner % picks);
    const int64_t row = i / (inner * picks) * size + (pick < 0 ? pick + size : pick);
    return code_at(data, row * inner + i % inner);
  });
}

ir::TensorPtr slice(const Operands& operands) {
  const ir::Tensor& data = *operands.inputs[0];
  std::vector<int64_t> starts(data.dims.size(), 0), steps(data.dims.size(), 1);
  const auto list = [&](size_t input) {
    const auto found = input < operands.inputs.size() && operands.inputs[input]
                           ? integer_elements(*operands.inputs[input])
                           : std::nullopt;
    return found ? static_dims(*found) : std::vector<int64_t>{};
  };
  const std::vector<int64_t> begins = list(1), ends = list(2), by = list(4);
  std::vector<int64_t> axes = list(3);
  for (size_t i = axes.size(); i < begins.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (begins.empty() || begins.size() != ends.size()) return nullptr;
  if (data.dims.size() != operands.dims.size()) return nullptr;
  for (size_t i = 0; i < begins.size(); ++i) {
    const auto axis = normal_axis(axes[i], data.dims.size());
    if (!axis) return nullptr;
    steps[*axis] = by.empty() ? 1 : by.at(i);
    const auto extent = slice_extent(begins[i], ends[i], steps[*axis], data.dims[*axis]);
    if (!extent) return nullptr;
    starts[*axis] = extent->start.value();
  }
  const auto strides = strides_of(data.dims);
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t i) {
    const auto at = coordinates(i, operands.dims);
    int64_t from = 0;
    for (size_t d = 0; d < at.size(); ++d) from += (starts[d] + at[d] * steps[d]) * strides[d];
    return code_at(data, from);
  });
}

// ONNX's default is one float zero.
ir::TensorPtr constant_of_shape(const Operands& operands) {
  const ir::TensorPtr value = operands.node.tensor("value");
  if (value && (value->elements() != 1 || value->dtype != operands.dtype)) return nullptr;
  const uint64_t code = value ? load_code(value->dtype, value->data, 0) : 0;
  return tensor_of_codes(operands.dtype, operands.dims, [&](int64_t) { return code; });
}

struct Movement {
  std::string_view op;
  Evaluate evaluate;
};

constexpr auto kMovement = std::to_array<Movement>({
    {"Concat", concat},
    {"ConstantOfShape", constant_of_shape},
    {"Expand", expand},
    {"Flatten", same_elements},
    {"Gather", gather},
    {"Identity", same_elements},
    {"Reshape", same_elements},
    {"Slice", slice},
    {"Squeeze", same_elements},
    {"Tile", tile},
    {"Transpose", transpose},
    {"Unsqueeze", same_elements},
});

}  // namespace

Evaluate find_movement(std::string_view op) {
  const auto found = std::find_if(kMovement.begin(), kMovement.end(),
                                  [&](const Movement& entry) { return entry.op == op; });
  return found == kMovement.end() ? nullptr : found->evaluate;
}

BroadcastIndex::BroadcastIndex(const std::vector<int64_t>& dims, const std::vector<int64_t>& result)
    : result_(result), strides_(result.size(), 0) {
  if (dims.size() > result.size()) throw UserError("an operand has more dims than the result");
  int64_t stride = 1;
  const size_t shift = result.size() - dims.size();
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i] != 1 && dims[i] != result[shift + i]) throw UserError("dims do not broadcast");
    if (dims[i] != 1) strides_[shift + i] = stride;
    stride *= dims[i];
  }
}

int64_t BroadcastIndex::operator()(int64_t index) const {
  int64_t from = 0;
  for (size_t i = result_.size(); i-- > 0;) {
    from += index % result_[i] * strides_[i];
    index /= result_[i];
  }
  return from;
}

ir::TensorPtr tensor_of_codes(DType dtype, const std::vector<int64_t>& dims,
                              const std::function<uint64_t(int64_t)>& code) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  std::vector<std::byte> bytes(storage_bytes(dtype, count));
  for (int64_t i = 0; i < count; ++i) store_code(dtype, bytes.data(), i, code(i));
  return ir::Tensor::copy(dtype, dims, bytes);
}

}  // namespace tenon::folding
