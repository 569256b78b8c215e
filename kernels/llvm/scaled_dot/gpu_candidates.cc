// The candidates for a dot on a GPU: which operands are multiplied in which type, and how many rows
// a CTA takes.
#include <algorithm>
#include <array>
#include <functional>

#include "kernels/llvm/scaled_dot.h"
#include "kernels/llvm/scaled_dot/dense_rows.h"
#include "kernels/llvm/scaled_dot/gpu_dot.h"
#include "kernels/llvm/scaled_dot/gpu_operands.h"
#include "kernels/llvm/scaled_dot/packed_weight.h"
#include "kernels/llvm/scaled_dot/pipelined_plan.h"
#include "kernels/llvm/scaled_dot/weight_source.h"
#include "kernels/llvm/split_parts.h"

namespace tenon::kernels {
namespace {

using codegen::ValueId;

bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// Tiles for few and for many rows, and how many are few. CTAs of one warp get small ones.
struct Tiles {
  GpuDotTile few, many;
  int64_t most_few;

  static Tiles of(const codegen::GpuTarget& gpu) {
    if (gpu.threads < 128) return {{2, 16, 32}, {4, 16, 32}, 3};
    return {{16, 64, 128}, {64, 64, 128}, 32};
  }
};

// 1 up to `limit` rows, 0 above.
Dim at_most(const Dim& rows, int64_t limit) {
  return max(Dim(0), min(Dim(1), Dim(limit + 1) - rows));
}

// One launch for few rows and one for many; a Run gives tasks to the one that fits.
void add_launches(const GpuDotPlan& plan, const Tiles& tiles, Lowered& lowered,
                  const std::function<Launch(const GpuDotPlan&)>& make) {
  const Dim few = at_most(plan.rows, tiles.most_few);
  const auto add = [&](const GpuDotTile& tile, const Dim& wanted) {
    if (wanted.is(0)) return;
    GpuDotPlan chosen = plan;
    chosen.tile = tile;
    Launch launch = make(chosen);
    launch.tasks = chosen.tasks() * wanted;
    launch.threads = tile.threads;
    lowered.launches.push_back(std::move(launch));
  };
  add(tiles.few, few);
  add(tiles.many, 1 - few);
}

// What add_launches() makes.
Plan plan_of(const ScaledDotProblem& problem, const Settings& settings,
             std::function<Lowered()> lower) {
  const Tiles tiles = Tiles::of(*settings.gpu);
  const auto range = [](const RowRange& rows, const GpuDotTile& tile) -> RangePlan {
    return {rows,
            {{{Skeleton::kMma,
               {{Knob::kTileM, tile.rows},
                {Knob::kTileN, tile.columns},
                {Knob::kWarps, tile.threads / 32}}}}}};
  };
  return {{range({0, tiles.most_few}, tiles.few), range({tiles.most_few + 1}, tiles.many)},
          std::move(lower),
          problem.rows};
}

// The plan's left side, and the rows themselves.
BufferArgument plan_rows(const ir::Graph& graph, const ScaledDotProblem& problem, GpuDotPlan& plan,
                         Lowered& lowered) {
  plan.n = problem.n;
  plan.k = problem.k;
  plan.rows = problem.rows;
  if (reads_rows_directly(problem)) {
    plan.left_type = problem.a_type;
    plan.left_turned = problem.dot.a_k_first;
    return BufferArgument::value(problem.dot.a);
  }
  plan.left_type = DType::kF32;
  return dense_rows(graph, problem, lowered, kGpuRowLanes);
}

// Matrices of a batch that are not one tall matrix.
void plan_batches(const ScaledDotProblem& problem, GpuDotPlan& plan) {
  plan.batches = element_count(problem.batch);
  plan.rows = problem.m;
}

int terms_in(DType type, DType operand) { return type == operand ? 1 : bf16_parts(type); }

// ---- codes stay codes

Lowered lower_mma(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                  const ScaledDotProblem& problem, const GpuWeightLayout& layout) {
  Lowered lowered;
  GpuDotPlan plan;
  const BufferArgument rows = plan_rows(graph, problem, plan, lowered);
  plan.operand = layout.operand;
  plan.left_terms = terms_in(plan.left_type, plan.operand);
  plan.right_terms = layout.parts();
  const GpuWeightBuffers buffers = pack_gpu_weight(graph, problem, layout, lowered);
  add_launches(plan, Tiles::of(*settings.gpu), lowered, [&](const GpuDotPlan& chosen) {
    LaunchWriter writer("dot");
    const ValueId a = writer.buffer("a", chosen.left_type, rows);
    GpuWeightReader weight(writer, layout, buffers, chosen.tile.columns);
    Epilogue epilogue(writer, graph, node, problem, {chosen.tile.rows, chosen.tile.columns},
                      lowered);
    declare_gpu_dot(writer, chosen);
    emit_packed_dot(writer, chosen, a, layout, weight, epilogue);
    return writer.finish(chosen.tasks(), 1000);
  });
  replace_weight(problem, lowered);
  return lowered;
}

Planned plan_mma(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (Support answer = supports_gpu_dot(graph, node, described); !answer) return answer;
  const ScaledDotProblem& problem = described.problem;
  if (!problem.b_constant) return Planned::no("the weight is not a constant matrix");
  if (problem.y_type == DType::kI32) return Planned::no("int32 output is not supported");
  if (problem.dot.a_k_first && !element_count(problem.batch).is(1)) {
    return Planned::no("batched transposed activations are not supported");
  }
  const auto weight = gpu_layout(graph, problem);
  if (!weight.support) return weight.support;
  return plan_of(problem, settings, [&graph, &node, &settings, problem, layout = weight.layout] {
    return lower_mma(graph, node, settings, problem, layout);
  });
}

// ---- b is read where it lies

Lowered lower_strided(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                      const ScaledDotProblem& problem, BufferArgument b, Lowered lowered) {
  GpuDotPlan plan;
  const BufferArgument rows = plan_rows(graph, problem, plan, lowered);
  if (!problem.b_constant || plan.left_turned) plan_batches(problem, plan);
  plan.integer = problem.y_type == DType::kI32;
  const bool scaled_b = problem.has_scale_b();
  const DType right_type = scaled_b || !is_half(problem.b_type) ? DType::kF32 : problem.b_type;
  if (plan.integer) {
    plan.operand = DType::kBF16;  // bytes less a zero point have 8 bits and a sign
  } else {
    const bool same = plan.left_type == right_type && is_half(right_type);
    plan.operand = same ? right_type : DType::kBF16;
    plan.left_terms = terms_in(plan.left_type, plan.operand);
    plan.right_terms = terms_in(right_type, plan.operand);
  }
  add_launches(plan, Tiles::of(*settings.gpu), lowered, [&](const GpuDotPlan& chosen) {
    LaunchWriter writer("dot_strided");
    const ValueId a = writer.buffer("a", chosen.left_type, rows);
    RuntimePanel right(writer, graph, problem, b);
    Epilogue epilogue(writer, graph, node, problem, {chosen.tile.rows, chosen.tile.columns},
                      lowered);
    declare_gpu_dot(writer, chosen);
    emit_strided_dot(writer, chosen, a, right, problem.dot.b_k_last, epilogue);
    return writer.finish(chosen.tasks(), 1000);
  });
  return lowered;
}

Planned plan_mma_strided(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (Support answer = supports_gpu_dot(graph, node, described); !answer) return answer;
  const ScaledDotProblem& problem = described.problem;
  if (Support answer = supports_runtime_panel(graph, problem); !answer) return answer;
  return plan_of(problem, settings, [&graph, &node, &settings, problem] {
    return lower_strided(graph, node, settings, problem, BufferArgument::value(problem.dot.b), {});
  });
}

// ---- a weight without a packed form becomes f32

Lowered lower_mma_expanded(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                           ScaledDotProblem problem) {
  Lowered lowered;
  const int columns = static_cast<int>(problem.n.value());
  PackedWeight packed = pack_weight(graph, problem, plain_layout(problem, columns));
  lowered.packed.push_back(std::move(packed.elements));
  replace_weight(problem, lowered);
  // What is left is a plain f32 matrix [K, N].
  problem.b_type = DType::kF32;
  problem.dot.b_k_last = false;
  problem.dot.scale_b = {};
  return lower_strided(graph, node, settings, problem, BufferArgument::packed(0),
                       std::move(lowered));
}

Planned plan_mma_expanded(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (Support answer = supports_gpu_dot(graph, node, described); !answer) return answer;
  const ScaledDotProblem& problem = described.problem;
  if (!problem.b_constant) return Planned::no("the weight is not a constant matrix");
  if (problem.y_type == DType::kI32) return Planned::no("int32 output is not supported");
  if (bit_width(problem.b_type) == 0 || bit_width(problem.b_type) == 64) {
    return Planned::no(std::string(name(problem.b_type)) + " weights are not exact in f32");
  }
  if (Support answer = has_constant_scales(graph, problem); !answer) return answer;
  return plan_of(problem, settings, [&graph, &node, &settings, problem] {
    return lower_mma_expanded(graph, node, settings, problem);
  });
}

}  // namespace

std::span<const Candidate> gpu_scaled_dot_candidates() {
  static constexpr std::array<Candidate, 4> table = {{
      {"pipelined", plan_pipelined},
      {"mma", plan_mma},
      {"mma_strided", plan_mma_strided},
      {"mma_expanded", plan_mma_expanded},
  }};
  return table;
}

std::span<const Candidate> gpu_merged_dots_candidates() {
  static constexpr std::array<Candidate, 1> table = {{
      {"pipelined", plan_merged},
  }};
  return table;
}

}  // namespace tenon::kernels
