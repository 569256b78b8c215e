// What the kernel of split keys takes.
#include <fmt/format.h>

#include "kernels/llvm/attention/gpu_decode.h"
#include "kernels/llvm/attention/gpu_decode_shape.h"

namespace tenon::kernels {

int64_t most_decode_queries(const AttentionProblem& problem) {
  return DecodeShape::kRows / problem.group();
}

Support supports_decode(const ir::Graph& graph, const ir::Node& node,
                        const AttentionProblem& problem, const Settings& settings) {
  const ir::Attention& attention = problem.attention;
  if (!settings.gpu->pipelines) return Support::no(settings.gpu->arch + " runs no pipelines");
  const DType type = graph.value(attention.q).dtype;
  if (type != DType::kF16 && type != DType::kBF16) {
    return Support::no("heads are " + std::string(name(type)) + ", not 16 bits wide");
  }
  for (const ir::ValueId id : {attention.k, attention.v, node.outputs[0]}) {
    if (graph.value(id).dtype != type) return Support::no("operands differ in their types");
  }
  if (most_decode_queries(problem) == 0) {
    return Support::no(fmt::format("{} heads share their keys, more than {}", problem.group(),
                                   DecodeShape::kRows));
  }
  if (attention.k_layout == "bhds" && !problem.has_past()) {
    return Support::no("keys lie side by side");
  }
  for (const int64_t depth : {problem.depth, problem.value_depth}) {
    if (depth % 16 != 0 || depth > 256) {
      return Support::no(fmt::format("heads of {}, not of a multiple of 16 up to 256", depth));
    }
    // Boxes are wider than such heads: only past the end of a row are there zeros.
    const bool one_below_the_other =
        problem.has_past() || (attention.k_layout == "bhsd" && attention.v_layout == "bhsd");
    if (depth % 64 != 0 && !one_below_the_other) {
      return Support::no(fmt::format("heads of {} side by side", depth));
    }
  }
  for (const int64_t queries : {int64_t{1}, most_decode_queries(problem)}) {
    if (rank_decode_shapes(problem, queries, *settings.gpu).empty()) {
      return Support::no("a slot of keys does not fit shared memory");
    }
  }
  return Support::yes();
}

}  // namespace tenon::kernels
