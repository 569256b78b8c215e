#include "kernels/cudnn_attention.h"

#include <algorithm>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "codegen/arch_spec.h"
#include "kernels/cudnn/candidates.h"
#include "kernels/cudnn/graph_call.h"
#include "kernels/llvm/attention/gpu_candidates.h"
#include "kernels/llvm/attention/key_cache.h"
#include "kernels/llvm/attention/place_heads.h"
#include "kernels/llvm/attention/problem.h"
#include "kernels/llvm/attention/row_lengths.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kSample = 256;          // of a size that is open until Run
constexpr int64_t kWorkspace = 16 << 20;  // parts of few queries' sums
constexpr int64_t kManyQueries = 129;     // from which the products count

Support takes_types(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  const DType type = graph.value(attention.q).dtype;
  if (type != DType::kF16 && type != DType::kBF16) return Support::no("q is not f16 or bf16");
  for (const ir::ValueId id : {attention.k, attention.v, node.outputs[0]}) {
    if (graph.value(id).dtype != type) {
      return Support::no("q, k, v and the output have different types");
    }
  }
  if (problem.is_packed()) return Support::no("packed QKV is not supported");
  for (const HeadStrides* strides : {&problem.q, &problem.k, &problem.v, &problem.y}) {
    if (!strides->column.is(1)) return Support::no("heads whose elements do not follow each other");
  }
  return Support::yes();
}

// What cuDNN could compute, but is not asked to.
Support takes_scores(const AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  if (attention.mask != ir::kNoValue) return Support::no("cuDNN is not asked to add a mask");
  if (attention.softcap > 0) return Support::no("cuDNN is not asked to cap scores");
  if (attention.sinks != ir::kNoValue) return Support::no("cuDNN is not asked for sinks");
  if (attention.rounds_probabilities()) {
    return Support::no("rounded probabilities need the softmax denominator first");
  }
  return Support::yes();
}

bool has_lengths(const AttentionProblem& problem) {
  return problem.attention.kv_lengths != ir::kNoValue;
}

// A cache with room for the new keys alone never has a past.
bool fills_cache(const AttentionProblem& problem) {
  return problem.queries == problem.keys && problem.keys == problem.all_keys;
}

// As cuDNN says it: from the first key or from the last.
cudnn::Band band_of(const AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  cudnn::Band band{.left = attention.left_window, .right = attention.right_window};
  if (attention.causal || attention.causal_top_left) band.right = 0;
  const bool is_behind_past = problem.has_past() && !fills_cache(problem);
  band.from_end = band.hides() && (attention.causal || is_behind_past);
  return band;
}

// cuDNN does not say what becomes of a query that sees no key, and that it is a whole Run or batch
// row which has too few is known too late to take another kernel.
Support sees_keys(const AttentionProblem& problem) {
  const ir::Attention& attention = problem.attention;
  const cudnn::Band band = band_of(problem);
  const bool appends = problem.has_past() && problem.queries == problem.keys;
  if (band.from_end && !attention.causal && !appends) {
    return Support::no("queries behind a past that are not as many as the new keys");
  }
  if (has_lengths(problem)) {
    if (attention.least_length < 1) return Support::no("a batch row may have no keys");
    if (band.left >= 0 || (attention.causal && !problem.queries.is(1))) {
      return Support::no("in a short batch row queries may see no keys");
    }
    return Support::yes();
  }
  if (problem.has_past() && !(problem.all_keys == problem.past + problem.keys)) {
    return Support::no("a cache of a fixed size without lengths");
  }
  const bool needs_enough = band.left >= 0 || band.from_end;
  if (needs_enough && !appends &&
      ir::decide(problem.queries, ir::Relation::kAtMost, problem.all_keys) != true) {
    return Support::no("queries may be more than the keys, and the first ones see none");
  }
  return Support::yes();
}

Support takes(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem) {
  if (Support answer = takes_types(graph, node, problem); !answer) return answer;
  if (Support answer = takes_scores(problem); !answer) return answer;
  if (Support answer = sees_keys(problem); !answer) return answer;
  // On an H200 queries behind a past saw the wrong keys.
  if (has_lengths(problem) && band_of(problem).from_end) {
    return Support::no("cuDNN 9.14 gets lengths of batch rows behind a past wrong");
  }
  return Support::yes();
}

class SdpaPlan {
 public:
  SdpaPlan(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
           const AttentionProblem& problem)
      : graph_(graph), node_(node), settings_(settings), problem_(problem) {
    sdpa_.dtype = graph.value(problem.attention.q).dtype;
    sdpa_.heads = problem.attention.q_heads;
    sdpa_.kv_heads = problem.attention.kv_heads;
    sdpa_.depth = problem.depth;
    sdpa_.value_depth = problem.value_depth;
    sdpa_.scale = problem.scale;
    sdpa_.band = band_of(problem);
    sdpa_.has_lengths = has_lengths(problem);
    sdpa_.version = cudnn::library().functions.version;
  }

  Support ask() const {
    const std::vector<Dim> sizes = {problem_.batch, problem_.queries, problem_.all_keys};
    const int major = codegen::arch_spec(settings_.gpu->arch).compute_major;
    if (Support gates = cudnn::takes(sdpa_, sizes, sdpa_.version, major); !gates) return gates;
    std::vector<int64_t> numbers;
    Lowered unused;
    for (const Dim& dim : indices(operands(unused))) {
      numbers.push_back(dim.evaluate([](std::string_view) { return kSample; }));
    }
    const auto is_empty = [](int64_t dim) { return dim <= 0; };
    if (std::any_of(numbers.begin(), numbers.begin() + 3, is_empty)) {
      return Support::no("it has nothing to compute");
    }
    // The code is made where it runs, for the sizes of a Run.
    return ask_cudnn(cudnn::graph_of(sdpa_, numbers), settings_, {.builds = false});
  }

  std::vector<RangePlan> ranges() const {
    return {{{0, kManyQueries - 1}, {{{Skeleton::kLibrary}, 0, kWorkspace}}},
            {{kManyQueries}, {{{Skeleton::kLibrary}, microseconds(), kWorkspace}}}};
  }

  Lowered lower() const {
    Lowered lowered;
    lowered.sizes = size_checks(graph_, problem_, /*mask_has_all_keys=*/false);
    const AttentionOperands placed = operands(lowered);
    std::vector<BufferArgument> buffers = {placed.q.buffer, placed.keys.buffer,
                                           placed.values.buffer};
    if (sdpa_.has_lengths) {
      const RowLengths lengths = row_lengths(graph_, problem_, lowered);
      buffers.push_back(lengths.queries);
      buffers.push_back(lengths.keys);
      if (sdpa_.has_distances()) buffers.push_back(lengths.distances);
    }
    buffers.push_back(BufferArgument::value(node_.output(0)));
    buffers.push_back(lowered.add_scratch(Dim(kWorkspace)));
    const auto called = std::make_shared<const cudnn::GraphCall>(
        &cudnn::library().functions, settings_.device_ordinal, sdpa_, cudnn::Rules{});
    Launch launch = Launch::library(called, std::move(buffers), called->form().writes());
    launch.indices = indices(placed);
    launch.indices.push_back(kWorkspace);
    const Dim is_any = min(problem_.batch * problem_.queries, 1);
    launch.tasks = launch.tasks * is_any;
    lowered.sizes.push_back({is_any, ir::Relation::kAtMost, problem_.all_keys});
    lowered.launches.push_back(std::move(launch));
    check_lengths(problem_, lowered);
    return lowered;
  }

  const Dim& queries() const { return problem_.queries; }

 private:
  AttentionOperands operands(Lowered& lowered) const {
    AttentionOperands placed =
        placed_operands(graph_, node_, problem_, HeadTiles::for_gpu(), 1, lowered).numbers;
    if (sdpa_.has_lengths) placed.values = zero_behind_lengths(placed.values, lowered);
    return placed;
  }

  // cuDNN 9.14 multiplies values behind a length by 0, and NaN stays NaN. Scores of keys there are
  // replaced, whatever they are.
  HeadRows zero_behind_lengths(const HeadRows& rows, Lowered& lowered) const {
    const int64_t depth = problem_.value_depth;
    const Dim head = problem_.all_keys * depth, batch = head * sdpa_.kv_heads;
    const BufferArgument zeroed =
        lowered.add_scratch(problem_.batch * batch * (bit_width(sdpa_.dtype) / 8));
    lowered.launches.push_back(zero_behind_lengths_launch(
        graph_, problem_, {rows.buffer, rows.strides, zeroed, sdpa_.dtype, depth},
        HeadTiles::for_gpu()));
    return {zeroed, {batch, head, Dim(depth), 1}};
  }

  // As SdpaSizes has them.
  std::vector<Dim> indices(const AttentionOperands& placed) const {
    std::vector<Dim> numbers = {problem_.batch, problem_.queries, problem_.all_keys};
    for (const HeadStrides* strides :
         {&placed.q.strides, &placed.keys.strides, &placed.values.strides, &problem_.y}) {
      numbers.insert(numbers.end(), {strides->batch, strides->head, strides->row});
    }
    return numbers;
  }

  // At the fewest of many queries; 0 where nobody has measured cuDNN.
  double microseconds() const {
    if (!codegen::arch_spec(settings_.gpu->arch).has_measured_costs()) return 0;
    std::vector<std::string> of_rows;
    problem_.queries.collect_symbols(of_rows);
    const int64_t flops = problem_.flops().evaluate([&](std::string_view symbol) {
      return std::ranges::find(of_rows, symbol) == of_rows.end() ? 1 : kManyQueries;
    });
    const double rate = codegen::costs_of(*settings_.gpu).attention.library_flops;
    return static_cast<double>(std::max<int64_t>(flops, 0)) / (rate * settings_.gpu->sm_count);
  }

  const ir::Graph& graph_;
  const ir::Node& node_;
  const Settings& settings_;
  const AttentionProblem problem_;
  cudnn::Sdpa sdpa_;
};

Planned plan_sdpa(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  if (!settings.cudnn) return Planned::no("enable_cudnn is 0");
  if (settings.emulate) return Planned::no("cuDNN runs on a GPU only");
  const DescribedAttention described = describe_attention(graph, node);
  if (!described.support) return described.support;
  if (Support answer = takes(graph, node, described.problem); !answer) return answer;
  // Loading cuDNN and asking it takes as long as opening a session may.
  const bool is_wanted =
      settings.records || settings.tuning.lists_all || settings.tuning.candidate == "cudnn_sdpa";
  if (!is_wanted) return Planned::no("it is asked only where records may choose it (tune_file)");
  const cudnn::LibraryAnswer& library = cudnn::library();
  if (!library.support) return library.support;
  const auto made = std::make_shared<const SdpaPlan>(graph, node, settings, described.problem);
  if (Support answer = made->ask(); !answer) return answer;
  return Plan{made->ranges(), [made] { return made->lower(); }, made->queries()};
}

}  // namespace

std::span<const Candidate> attention_candidates_with_cudnn() {
  static const auto& table = *new std::vector<Candidate>([] {
    const auto own = gpu_attention_candidates();
    std::vector<Candidate> all(own.begin(), own.end());
    all.push_back({"cudnn_sdpa", plan_sdpa});
    return all;
  }());
  return table;
}

}  // namespace tenon::kernels
