#include "kernels/llvm/scaled_dot/runtime_panel.h"

#include "kernels/llvm/scaled_dot/dense_rows.h"

namespace tenon::kernels {

using codegen::kNone;
using codegen::ValueId;

Support supports_runtime_panel(const ir::Graph& graph, const ScaledDotProblem& problem) {
  if (Support type = supports_type(problem.b_type); !type) return type;
  if (is_packed(problem.b_type) || !problem.dot.b_dims.empty()) {
    return Support::no("B is sub-byte or pre-packed");
  }
  const ir::BlockScale& scale = problem.dot.scale_b;
  if (scale.scale == ir::kNoValue) {
    const bool integer = problem.y_type == DType::kI32 && is_byte(problem.b_type);
    return integer || has_float_rows(problem.b_type) ? Support::yes()
                                                     : Support::no("integer B without a scale");
  }
  const auto& shape = graph.value(scale.scale).shape;
  if (scale.per_channel || !shape || !element_count(*shape).is(1)) {
    return Support::no("B has per-channel or block scales");
  }
  if (scale.scale_type != DType::kUndefined) return Support::no("the scale of B is quantised");
  return Support::yes();
}

RuntimePanel::RuntimePanel(LaunchWriter& writer, const ir::Graph& graph,
                           const ScaledDotProblem& problem)
    : RuntimePanel(writer, graph, problem, BufferArgument::value(problem.dot.b)) {}

RuntimePanel::RuntimePanel(LaunchWriter& writer, const ir::Graph& graph,
                           const ScaledDotProblem& problem, BufferArgument b)
    : writer_(writer), b_(writer.builder), graph_(graph), problem_(problem) {
  const ir::ScaledDot& dot = problem.dot;
  b_buffer_ = writer.buffer("b", storage_type(problem.b_type), b);
  if (dot.scale_b.scale != ir::kNoValue) {
    scale_buffer_ = writer.buffer("scale", storage_type(graph.value(dot.scale_b.scale).dtype),
                                  BufferArgument::value(dot.scale_b.scale));
  }
  if (dot.scale_b.zero_point != ir::kNoValue) {
    zero_buffer_ = writer.buffer("zero", storage_type(graph.value(dot.scale_b.zero_point).dtype),
                                 BufferArgument::value(dot.scale_b.zero_point));
  }
  declare_batch(problem.a_batch, problem.m * problem.k, a_strides_);
  declare_batch(problem.b_batch, problem.k * problem.n, b_strides_);
}

void RuntimePanel::declare_batch(const Shape& own, const Dim& matrix, std::vector<Dim>& strides) {
  strides.assign(problem_.batch.size(), Dim(0));
  Dim stride = matrix;
  const size_t shift = problem_.batch.size() - own.size();
  for (size_t axis = own.size(); axis-- > 0;) {
    strides[axis + shift] = stride_unless_one(own[axis], stride);
    stride = stride * own[axis];
  }
  for (const Dim& dim : strides) writer_.declare(dim);
  for (const Dim& dim : problem_.batch) writer_.declare(dim);
}

void RuntimePanel::begin() {
  const auto scalar = [&](ValueId buffer, ir::ValueId value) {
    const Tile code = b_.load({buffer, b_.index(0), {}, {}}, {});
    return b_.cast(dequantize_tile(b_, code, graph_.value(value).dtype), DType::kF32);
  };
  if (scale_buffer_ != kNone) scale_ = scalar(scale_buffer_, problem_.dot.scale_b.scale);
  if (zero_buffer_ != kNone) zero_ = scalar(zero_buffer_, problem_.dot.scale_b.zero_point);
}

ValueId RuntimePanel::batch_offset(ValueId batch, const std::vector<Dim>& strides) const {
  ValueId offset = b_.index(0);
  for (size_t axis = strides.size(); axis-- > 0;) {
    const ValueId size = writer_.index(problem_.batch[axis]);
    const ValueId coordinate = axis == 0 ? batch : b_.rem(batch, size);
    offset = b_.add(offset, b_.mul(coordinate, writer_.index(strides[axis])));
    if (axis > 0) batch = b_.div(batch, size);
  }
  return offset;
}

ValueId RuntimePanel::a_offset(ValueId batch) const { return batch_offset(batch, a_strides_); }

ValueId RuntimePanel::b_offset(ValueId batch) const { return batch_offset(batch, b_strides_); }

bool RuntimePanel::is_scaled() const { return scale_buffer_ != kNone || zero_buffer_ != kNone; }

Tile RuntimePanel::numbers(Tile codes) const {
  Tile value = b_.cast(dequantize_tile(b_, codes, problem_.b_type), DType::kF32);
  if (zero_ != kNone) value = b_.sub(value, b_.splat(zero_, b_.type(value).shape));
  if (scale_ != kNone) value = b_.mul(value, b_.splat(scale_, b_.type(value).shape));
  return value;
}

Panel RuntimePanel::read(const GemmTask& task, ValueId first, ValueId count, ValueId scratch,
                         int columns) const {
  const ValueId n = writer_.index(problem_.n), k = writer_.index(problem_.k);
  const ValueId column = b_.mul(task.panel, b_.index(columns));
  const ValueId extent = b_.sub(n, column);
  const ValueId base = b_offset(task.batch);
  const bool k_last = problem_.dot.b_k_last;
  const ValueId row_stride = k_last ? b_.index(1) : n;
  const ValueId column_stride = k_last ? k : b_.index(1);
  const ValueId start = b_.add(base, b_.mul(column, column_stride));
  b_.loop({b_.index(0), count, b_.index(1)}, {}, [&](ValueId row, auto) {
    const ValueId at = b_.add(start, b_.mul(b_.add(first, row), row_stride));
    const Tile codes = b_.load({b_buffer_, at, {column_stride}, {extent}}, {columns});
    b_.store({{scratch, b_.mul(row, b_.index(columns)), {}, {}}, numbers(codes)});
    return std::vector<ValueId>{};
  });
  return {scratch, b_.index(0)};
}

}  // namespace tenon::kernels
