#include "kernels/llvm/scaled_dot/gpu_operands.h"

#include "kernels/llvm/scaled_dot/dense_rows.h"
#include "kernels/llvm/scaled_dot/epilogue.h"

namespace tenon::kernels {
namespace {

bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

}  // namespace

bool reads_rows_directly(const ScaledDotProblem& problem) {
  return problem.dot.scale_a.scale == ir::kNoValue &&
         problem.dot.scale_a.zero_point == ir::kNoValue &&
         (problem.a_type == DType::kF32 || is_half(problem.a_type));
}

Support supports_gpu_dot(const ir::Graph& graph, const ir::Node& node,
                         const DescribedScaledDot& described) {
  if (!described.support) return described.support;
  const ScaledDotProblem& problem = described.problem;
  const bool integer =
      problem.y_type == DType::kI32 && is_byte(problem.a_type) && is_byte(problem.b_type);
  if (problem.y_type != DType::kF32 && !is_half(problem.y_type) && !integer) {
    return Support::no("the output is not f32, f16 or bf16 but " +
                       std::string(name(problem.y_type)));
  }
  if (Support rows = supports_dense_rows(graph, problem); !rows) return rows;
  return Epilogue::supports(graph, node, problem);
}

}  // namespace tenon::kernels
