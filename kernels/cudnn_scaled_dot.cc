#include "kernels/cudnn_scaled_dot.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "base/convert.h"
#include "codegen/arch_spec.h"
#include "kernels/cudnn/candidates.h"
#include "kernels/cudnn/graph_call.h"
#include "kernels/llvm/scaled_dot.h"
#include "kernels/llvm/scaled_dot/problem.h"
#include "kernels/llvm/scaled_dot/scale_tiles.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kSampleRows = 256;      // where a Run brings them
constexpr int64_t kWorkspace = 16 << 20;  // sums of parts of k

DType scale_type_of(const ir::Graph& graph, const ir::BlockScale& scale) {
  return scale.scale_type != DType::kUndefined ? scale.scale_type : graph.value(scale.scale).dtype;
}

Support takes_scales(const ir::Graph& graph, const ScaledDotProblem& problem) {
  const ir::BlockScale &a = problem.dot.scale_a, &b = problem.dot.scale_b;
  for (const ir::BlockScale* side : {&a, &b}) {
    if (side->scale == ir::kNoValue || side->block <= 0) {
      return Support::no("cuDNN multiplies where both sides have block scales");
    }
    if (side->zero_point != ir::kNoValue || side->zero_offset != 0) {
      return Support::no("cuDNN takes no zero points");
    }
  }
  if (a.block != b.block || scale_type_of(graph, a) != scale_type_of(graph, b)) {
    return Support::no("the sides are scaled in different ways");
  }
  if (b.rounded != DType::kUndefined && b.rounded != DType::kF32) {
    return Support::no("scales times a factor are rounded");
  }
  if (a.rounded != DType::kUndefined) return Support::no("the scales of a have a factor");
  if (!problem.b_constant || !graph.value(b.scale).is_constant()) {
    return Support::no("the weight and its scales are not constants");
  }
  // The products of Blackwell do not look at the sign of a scale.
  if (scale_type_of(graph, a) != DType::kF8E8M0) {
    return Support::no("scales that a Run brings may be negative, which its products ignore");
  }
  return Support::yes();
}

Support takes(const ir::Graph& graph, const ir::Node& node, const ScaledDotProblem& problem) {
  const ir::ScaledDot& dot = problem.dot;
  if (Support answer = takes_scales(graph, problem); !answer) return answer;
  if (node.body != nullptr || dot.bias != ir::kNoValue) {
    return Support::no("cuDNN is not asked to add a bias or to run what is fused behind");
  }
  if (dot.a_k_first) return Support::no("the elements of a's rows do not follow each other");
  if (!problem.k.is_constant() || problem.k.value() % dot.scale_b.block != 0) {
    return Support::no("the last block of K is not whole");
  }
  const DType type = graph.value(node.outputs[0]).dtype;
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
    return Support::no(fmt::format("cuDNN is not asked for {}", name(type)));
  }
  const bool has_both =
      dot.alpha != ir::kNoValue && (dot.alpha_constant != 1.0f || dot.scale_b.factor != 1.0f);
  if (has_both) return Support::no("a factor at Run and a constant one");
  return Support::yes();
}

class BlockScaledPlan {
 public:
  BlockScaledPlan(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                  const ScaledDotProblem& problem)
      : graph_(graph), node_(node), settings_(settings), problem_(problem) {
    dot_.a_type = problem.a_type;
    dot_.b_type = problem.b_type;
    dot_.scale_type = scale_type_of(graph, problem.dot.scale_b);
    dot_.block = problem.dot.scale_b.block;
    dot_.result = graph.value(node.outputs[0]).dtype;
    dot_.has_factor = problem.dot.alpha != ir::kNoValue || constant_factor() != 1.0f;
  }

  const cudnn::BlockScaledDot& dot() const { return dot_; }
  const Dim& rows() const { return problem_.rows; }
  Support ask() const {
    const int64_t rows = problem_.rows.evaluate([](std::string_view) { return kSampleRows; });
    if (rows <= 0) return Support::no("it has nothing to compute");
    const cudnn::Graph graph = cudnn::graph_of(problem(), std::span(&rows, 1));
    return ask_cudnn(graph, settings_, {.builds = false});
  }

  Lowered lower() const {
    Lowered lowered;
    const ir::ScaledDot& dot = problem_.dot;
    const Dim& rows = problem_.rows;
    const BufferArgument a_tiles = lowered.add_scratch(scale_tiles_bytes(rows, blocks()));
    lowered.launches.push_back(
        scale_tiles_launch(BufferArgument::value(dot.scale_a.scale), rows, blocks(), a_tiles));
    std::vector<BufferArgument> buffers = {BufferArgument::value(dot.a), a_tiles, weight(lowered),
                                           weight_scales(lowered)};
    if (dot_.has_factor) buffers.push_back(factor(lowered));
    buffers.push_back(BufferArgument::value(node_.output(0)));
    buffers.push_back(lowered.add_scratch(Dim(kWorkspace)));
    const auto called = std::make_shared<const cudnn::GraphCall>(
        &cudnn::library().functions, settings_.device_ordinal, problem(), cudnn::Rules{});
    Launch launch = Launch::library(called, std::move(buffers), called->form().writes());
    launch.indices = {rows, kWorkspace};
    launch.tasks = launch.tasks * min(rows, 1);
    lowered.launches.push_back(std::move(launch));
    return lowered;
  }

 private:
  int64_t n() const { return problem_.n.value(); }
  int64_t k() const { return problem_.k.value(); }
  int64_t blocks() const { return k() / dot_.block; }
  float constant_factor() const {
    return problem_.dot.alpha_constant * problem_.dot.scale_b.factor;
  }
  cudnn::WeightDot problem() const { return {dot_, n(), k()}; }

  static BufferArgument add(Lowered& lowered, std::span<const std::byte> bytes) {
    PackedConstant made;
    made.bytes = bytes.size();
    made.data = aligned_bytes(bytes.size());
    std::memcpy(made.data.get(), bytes.data(), bytes.size());
    lowered.packed.push_back(std::move(made));
    return BufferArgument::packed(static_cast<int32_t>(lowered.packed.size()) - 1);
  }

  // [rows, columns] of a constant that may be stored the other way round.
  static std::vector<std::byte> rows_of(const ir::Tensor& tensor, DType dtype, int64_t rows,
                                        int64_t columns, bool turned) {
    std::vector<std::byte> bytes(static_cast<size_t>(storage_bytes(dtype, rows * columns)));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t from = turned ? column * rows + row : row * columns + column;
        store_code(dtype, bytes.data(), row * columns + column,
                   load_code(dtype, tensor.data, from));
      }
    }
    return bytes;
  }

  BufferArgument weight(Lowered& lowered) const {
    const ir::ScaledDot& dot = problem_.dot;
    if (dot.b_k_last) return BufferArgument::value(dot.b);
    lowered.replaced_constants.push_back(dot.b);
    return add(lowered, rows_of(*graph_.value(dot.b).constant, dot_.b_type, n(), k(), true));
  }

  BufferArgument weight_scales(Lowered& lowered) const {
    const ir::ScaledDot& dot = problem_.dot;
    lowered.replaced_constants.push_back(dot.scale_b.scale);
    const std::vector<std::byte> scales = rows_of(*graph_.value(dot.scale_b.scale).constant,
                                                  dot_.scale_type, n(), blocks(), !dot.b_k_last);
    return add(lowered, cudnn::ScaleTiles{n(), blocks()}.from_rows(scales));
  }

  BufferArgument factor(Lowered& lowered) const {
    if (problem_.dot.alpha != ir::kNoValue) return BufferArgument::value(problem_.dot.alpha);
    const float number = constant_factor();
    return add(lowered, std::as_bytes(std::span(&number, 1)));
  }

  const ir::Graph& graph_;
  const ir::Node node_;
  const Settings& settings_;
  const ScaledDotProblem problem_;
  cudnn::BlockScaledDot dot_;
};

Planned plan_block_scaled(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  if (!settings.cudnn) return Planned::no("enable_cudnn is 0");
  if (settings.emulate) return Planned::no("cuDNN runs on a GPU only");
  const int major = codegen::arch_spec(settings.gpu->arch).compute_major;
  if (major < 10) return Planned::no("block-scaled dots of cuDNN need sm_100 or newer");
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (!described.support) return described.support;
  if (Support answer = takes(graph, node, described.problem); !answer) return answer;
  const cudnn::LibraryAnswer& library = cudnn::library();
  if (!library.support) return library.support;
  const auto made =
      std::make_shared<const BlockScaledPlan>(graph, node, settings, described.problem);
  Support gates = cudnn::takes(made->dot(), library.functions.version, major);
  if (!gates) return gates;
  if (Support answer = made->ask(); !answer) return answer;
  Plan plan = Plan::of({Skeleton::kLibrary}, [made] { return made->lower(); });
  plan.rows = made->rows();
  return plan;
}

Planned plan_one_block_scaled(const ir::Graph& graph, const ir::Node& node,
                              const Settings& settings) {
  const ir::MergedDots merged = ir::MergedDots::from(node);
  if (merged.prologue || merged.dots.size() != 1) {
    return Planned::no("cuDNN multiplies by one weight at a time");
  }
  return plan_block_scaled(graph, merged.dots.front(), settings);
}

constexpr std::string_view kName = "cudnn_block_scaled_dot";

// Behind the first one.
std::vector<Candidate> with(std::span<const Candidate> own, const Candidate& other) {
  std::vector<Candidate> all(own.begin(), own.end());
  all.insert(all.begin() + 1, other);
  return all;
}

}  // namespace

std::span<const Candidate> scaled_dot_candidates_with_cudnn() {
  static const auto& table =
      *new std::vector<Candidate>(with(gpu_scaled_dot_candidates(), {kName, plan_block_scaled}));
  return table;
}

std::span<const Candidate> merged_dots_candidates_with_cudnn() {
  static const auto& table = *new std::vector<Candidate>(
      with(gpu_merged_dots_candidates(), {kName, plan_one_block_scaled}));
  return table;
}

}  // namespace tenon::kernels
