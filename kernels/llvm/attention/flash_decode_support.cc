#include "kernels/llvm/attention/flash_decode_support.h"

#include <fmt/format.h>

#include "kernels/llvm/attention/flash_decode.h"
#include "kernels/llvm/attention/flash_decode_config.h"

namespace tenon::kernels {

int64_t most_flash_decode_queries(const AttentionProblem& problem) {
  return FlashDecodeConfig::kRows / problem.group();
}

Support supports_flash_decode(const ir::Graph& graph, const ir::Node& node,
                              const AttentionProblem& problem, const Settings& settings) {
  const ir::Attention& attention = problem.attention;
  if (!settings.gpu->pipelines)
    return Support::no(settings.gpu->arch + " has no asynchronous copies to shared memory");
  const DType type = graph.value(attention.q).dtype;
  if (type != DType::kF16 && type != DType::kBF16) {
    return Support::no("q is " + std::string(name(type)) + ", not f16 or bf16");
  }
  for (const ir::ValueId id : {attention.k, attention.v, node.outputs[0]}) {
    if (graph.value(id).dtype != type)
      return Support::no("q, k, v and the output have different types");
  }
  if (most_flash_decode_queries(problem) == 0) {
    return Support::no(fmt::format("a GQA group of {} heads is larger than {}", problem.group(),
                                   FlashDecodeConfig::kRows));
  }
  if (attention.k_layout == "bhds" && !problem.has_past()) {
    return Support::no("transposed K or V ([B, H, D, S]) is not supported");
  }
  for (const int64_t depth : {problem.depth, problem.value_depth}) {
    if (depth % 16 != 0 || depth > 256) {
      return Support::no(fmt::format("head_size {} is not a multiple of 16 up to 256", depth));
    }
    // TMA boxes are wider than such heads: only past the end of a row are there zeros.
    const bool one_below_the_other =
        problem.has_past() || (attention.k_layout == "bhsd" && attention.v_layout == "bhsd");
    if (depth % 64 != 0 && !one_below_the_other) {
      return Support::no(
          fmt::format("head_size {} is not a multiple of 64, which [B, S, H, D] needs", depth));
    }
  }
  for (const int64_t queries : {int64_t{1}, most_flash_decode_queries(problem)}) {
    if (rank_flash_decode_configs(problem, queries, *settings.gpu).empty()) {
      return Support::no("one stage of KV does not fit shared memory");
    }
  }
  return Support::yes();
}

}  // namespace tenon::kernels
