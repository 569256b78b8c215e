// The candidates for a dot on a GPU: which operands are multiplied in which type, and how many rows
// a CTA takes.
#include <algorithm>
#include <array>
#include <functional>

#include <fmt/format.h>

#include "kernels/compiled_kernels.h"
#include "kernels/llvm/scaled_dot.h"
#include "kernels/llvm/scaled_dot/dense_rows.h"
#include "kernels/llvm/scaled_dot/gpu_dot.h"
#include "kernels/llvm/scaled_dot/packed_weight.h"
#include "kernels/llvm/scaled_dot/pipelined_dot.h"
#include "kernels/llvm/scaled_dot/weight_source.h"
#include "kernels/llvm/split_parts.h"
#include "kernels/views.h"

namespace tenon::kernels {
namespace {

using codegen::ValueId;

bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// Rows as they are in memory, where the kernel can read them; otherwise dense_rows makes f32.
bool reads_rows_directly(const ScaledDotProblem& problem) {
  return problem.dot.scale_a.scale == ir::kNoValue &&
         problem.dot.scale_a.zero_point == ir::kNoValue &&
         (problem.a_type == DType::kF32 || is_half(problem.a_type));
}

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

Support supports_dot(const ir::Graph& graph, const ir::Node& node,
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

// ---- weights in the order of the matrix instructions, copies that run ahead

Support supports_one_pipelined(const ir::Graph& graph, const ir::Node& node) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (Support answer = supports_dot(graph, node, described); !answer) return answer;
  const ScaledDotProblem& problem = described.problem;
  if (!problem.b_constant) return Support::no("the weight is not a constant matrix");
  if (problem.y_type == DType::kI32) return Support::no("int32 output is not supported");
  if (!reads_rows_directly(problem) || problem.dot.a_k_first) {
    return Support::no("activations are transposed, quantised or not f32, f16 or bf16");
  }
  return Support::yes();
}

Support supports_pipelined_dots(const ir::Graph& graph, std::span<const ir::Node> nodes,
                                const Settings& settings) {
  for (const ir::Node& node : nodes) {
    if (Support answer = supports_one_pipelined(graph, node); !answer) return answer;
  }
  if (!settings.gpu->pipelines) {
    return Support::no(settings.gpu->arch + " has no asynchronous copies to shared memory");
  }
  const DotSections dots = plan_sections(graph, nodes, settings.precision);
  if (!dots.support) return dots.support;
  if (dots.layout.k * bit_width(dots.layout.operand) % 128 != 0) {
    return Support::no("K of the activations is not a multiple of 16 bytes");
  }
  if (rank_gemm_configs(dots.layout, 8, /*overlaps=*/false, *settings.gpu).empty()) {
    return Support::no("too little shared memory per CTA");
  }
  return Support::yes();
}

Support supports_pipelined(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  return supports_pipelined_dots(graph, {&node, 1}, settings);
}

// Where a prologue gains: some kernel of few rows computes it itself.
Support supports_prologue(const RowPrologue& prologue, std::span<const ir::Node> dots) {
  if (Support answer = prologue.supports(); !answer) return answer;
  const DotSections sections = plan_sections(prologue.graph, dots, prologue.settings.precision);
  const int64_t fewest = row_buckets(sections.first().problem.rows).front();
  if (!rank_resident_configs(sections.layout, fewest, *prologue.settings.gpu).empty()) {
    return Support::yes();
  }
  return Support::no(
      fmt::format("each CTA would recompute the prologue, and {}",
                  sections.layout.is_plain()
                      ? "unquantised weights have no skinny GEMM"
                      : "there are too many rows, or K is too long or not a multiple of a stage"));
}

Support supports_merged(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const ir::MergedDots merged = ir::MergedDots::from(node);
  if (Support dots = supports_pipelined_dots(graph, merged.dots, settings); !dots) return dots;
  if (!merged.prologue) return Support::yes();
  return supports_prologue({graph, *merged.prologue, settings}, merged.dots);
}

// A config whose kernel is expected to fit a CTA, and why those before it are not.
struct FittingConfig {
  size_t taken = 0;
  std::vector<std::string> dropped;  // by place in the ranking; empty: it was not looked at
};

// Accumulators of fewer tokens never fill the registers of a thread: looking would take longer than
// it is worth.
constexpr int kTileNThatFits = 32;

Support fits_cta(const PipelinedDot& dot, const GemmConfig& config, const Dim& rows,
                 const codegen::GpuTarget& gpu) {
  if (config.tile_n <= kTileNThatFits) return Support::yes();
  Lowered trial;
  const Launch launch = dot.emit(config, rows, trial);
  return estimate_gpu_once(launch.kernel, launch.threads, gpu).fits();
}

FittingConfig first_fitting(const PipelinedDot& dot, std::span<const GemmConfig> ranked,
                            size_t wanted, const Dim& rows, const codegen::GpuTarget& gpu) {
  FittingConfig fitting{wanted, std::vector<std::string>(ranked.size())};
  for (size_t i = 0; i < ranked.size(); ++i) {
    const size_t place = (wanted + i) % ranked.size();
    const Support fits = fits_cta(dot, ranked[place], rows, gpu);
    if (fits) {
      fitting.taken = place;
      return fitting;
    }
    fitting.dropped[place] = fits.reason;
  }
  return fitting;  // the assembler has the last word
}

// What is told of a ranking: the config that was taken, those that did not fit and the next two.
ConfigChoice describe_configs(std::span<const GemmConfig> ranked, const FittingConfig& fitting,
                              std::string problem) {
  constexpr size_t kOthers = 2;
  ConfigChoice choice{std::move(problem), ranked[fitting.taken].text(), {}};
  for (size_t i = 0; i < ranked.size() && choice.others.size() < kOthers; ++i) {
    if (i == fitting.taken) continue;
    const std::string& why = fitting.dropped[i];
    choice.others.push_back(ranked[i].text() + (why.empty() ? "" : ": dropped, " + why));
  }
  return choice;
}

// The rows that the kernel of a bucket takes.
std::string bucket_text(const Dim& rows, std::span<const int64_t> buckets, size_t i) {
  if (rows.is_constant()) return fmt::format("{} rows", buckets[i]);
  const bool last = i + 1 == buckets.size();
  return last ? fmt::format("rows > {}", buckets[i - 1]) : fmt::format("rows <= {}", buckets[i]);
}

// One kernel for each range of rows; a Run gives tasks to one of them.
class BucketLowering {
 public:
  BucketLowering(const PipelinedDot& dot, const Settings& settings, Lowered& lowered)
      : dot_(dot),
        settings_(settings),
        lowered_(lowered),
        rows_(dot.problem.rows),
        buckets_(row_buckets(rows_)) {
    for (const int64_t rows : buckets_) {
      resident_.push_back(rank_resident_configs(dot_.layout, rows, *settings_.gpu));
    }
  }

  void run() {
    add_prologue();
    for (size_t i = 0; i < buckets_.size(); ++i) add_bucket(i);
  }

 private:
  // kernels/program.cc lets kernels read what the caller brings without waiting; so do others that
  // have such inputs, if there are any.
  bool overlaps() const {
    if (!settings_.reads_inputs_before_wait || makes_rows()) return false;
    const ir::Graph& graph = dot_.graph;
    const auto reads_input = [&](ir::NodeId id) {
      const ir::Node& node = graph.node(id);
      return (node.is(ir::kScaledDot) || node.is(ir::kMergedDots)) &&
             caller_brings(graph, node.inputs[0]);
    };
    const auto products = std::ranges::count_if(graph.order(), reads_input);
    return caller_brings(graph, dot_.problem.dot.a) && (settings_.neighbours || products > 1);
  }

  // The rows that are multiplied are not those of the node before.
  bool makes_rows() const { return dot_.prologue != nullptr || dot_.layout.row_terms > 1; }

  // 1 where the rows are at most those of bucket i.
  Dim within(size_t i) const {
    return i + 1 == buckets_.size() ? Dim(1) : at_most(rows_, buckets_[i]);
  }

  // The buckets whose kernels read rows that were made from memory come last.
  void add_prologue() {
    if (!makes_rows()) return;
    const auto first = std::ranges::find_if(resident_, &std::vector<GemmConfig>::empty);
    if (first == resident_.end()) return;
    const auto i = static_cast<size_t>(first - resident_.begin());
    const Dim wanted = i == 0 ? Dim(1) : 1 - within(i - 1);
    if (dot_.prologue != nullptr) dot_.prologue->add_launches(wanted, lowered_);
    const int terms = dot_.layout.row_terms;
    if (terms > 1) {
      lowered_.launches.push_back(split_rows(dot_.problem, terms, dot_.terms, wanted));
    }
  }

  // Rows that are there need not be kept: such configs come last.
  std::vector<GemmConfig> configs_of(size_t i) const {
    if (makes_rows() && !resident_[i].empty()) return resident_[i];
    std::vector<GemmConfig> configs =
        rank_gemm_configs(dot_.layout, buckets_[i], overlaps(), *settings_.gpu);
    if (!makes_rows()) {
      configs.insert(configs.end(), resident_[i].begin(), resident_[i].end());
    }
    return configs;
  }

  void add_bucket(size_t i) {
    const std::vector<GemmConfig> configs = configs_of(i);
    const bool last = i + 1 == buckets_.size();
    const Dim rows = last ? rows_ : min(rows_, Dim(buckets_[i]));
    const size_t wanted = static_cast<size_t>(settings_.rank) % configs.size();
    const FittingConfig fitting = first_fitting(dot_, configs, wanted, rows, *settings_.gpu);
    lowered_.configs.push_back(describe_configs(configs, fitting, bucket_text(rows_, buckets_, i)));
    Launch launch = dot_.emit(configs[fitting.taken], rows, lowered_);
    launch.shared_bytes = configs[fitting.taken].shared_bytes;
    launch.tasks = launch.tasks * (within(i) - (i == 0 ? Dim(0) : within(i - 1)));
    lowered_.launches.push_back(std::move(launch));
  }

  const PipelinedDot& dot_;
  const Settings& settings_;
  Lowered& lowered_;
  Dim rows_;
  std::vector<int64_t> buckets_;
  std::vector<std::vector<GemmConfig>> resident_;  // by bucket; empty: rows are too many
};

Lowered lower_pipelined_dots(const ir::Graph& graph, std::span<const ir::Node> nodes,
                             const Settings& settings, const RowPrologue* prologue = nullptr) {
  DotSections dots = plan_sections(graph, nodes, settings.precision);
  Lowered lowered;
  const BufferArgument units = pack_sections(graph, dots, lowered);
  PipelinedDot dot{graph, dots, units, settings.gpu->sm_count};
  const int terms = dot.layout.row_terms;
  if (terms > 1) dot.terms = room_for_terms(dot.problem, terms, lowered);
  dot.prologue = prologue;
  BucketLowering(dot, settings, lowered).run();
  for (const DotSection& section : dots.sections) {
    for (const DotPart& part : section.parts) replace_weight(part.problem, lowered);
  }
  return lowered;
}

Lowered lower_pipelined(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  return lower_pipelined_dots(graph, {&node, 1}, settings);
}

Lowered lower_merged(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const ir::MergedDots merged = ir::MergedDots::from(node);
  if (!merged.prologue) return lower_pipelined_dots(graph, merged.dots, settings);
  const RowPrologue prologue{graph, *merged.prologue, settings};
  return lower_pipelined_dots(graph, merged.dots, settings, &prologue);
}

// ---- codes stay codes

Support supports_mma(const ir::Graph& graph, const ir::Node& node, const Settings&) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (Support answer = supports_dot(graph, node, described); !answer) return answer;
  const ScaledDotProblem& problem = described.problem;
  if (!problem.b_constant) return Support::no("the weight is not a constant matrix");
  if (problem.y_type == DType::kI32) return Support::no("int32 output is not supported");
  if (problem.dot.a_k_first && !element_count(problem.batch).is(1)) {
    return Support::no("batched transposed activations are not supported");
  }
  return gpu_layout(graph, problem).support;
}

Lowered lower_mma(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const ScaledDotProblem problem = describe_scaled_dot(graph, node).problem;
  const GpuWeightLayout layout = gpu_layout(graph, problem).layout;
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

Support supports_mma_strided(const ir::Graph& graph, const ir::Node& node, const Settings&) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (Support answer = supports_dot(graph, node, described); !answer) return answer;
  return supports_runtime_panel(graph, described.problem);
}

Lowered lower_mma_strided(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const ScaledDotProblem problem = describe_scaled_dot(graph, node).problem;
  return lower_strided(graph, node, settings, problem, BufferArgument::value(problem.dot.b), {});
}

// ---- a weight without a packed form becomes f32

Support supports_mma_expanded(const ir::Graph& graph, const ir::Node& node, const Settings&) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (Support answer = supports_dot(graph, node, described); !answer) return answer;
  const ScaledDotProblem& problem = described.problem;
  if (!problem.b_constant) return Support::no("the weight is not a constant matrix");
  if (problem.y_type == DType::kI32) return Support::no("int32 output is not supported");
  if (bit_width(problem.b_type) == 0 || bit_width(problem.b_type) == 64) {
    return Support::no(std::string(name(problem.b_type)) + " weights are not exact in f32");
  }
  return has_constant_scales(graph, problem);
}

Lowered lower_mma_expanded(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  ScaledDotProblem problem = describe_scaled_dot(graph, node).problem;
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

}  // namespace

std::span<const Candidate> gpu_scaled_dot_candidates() {
  static constexpr std::array<Candidate, 4> table = {{
      {"pipelined", supports_pipelined, lower_pipelined},
      {"mma", supports_mma, lower_mma},
      {"mma_strided", supports_mma_strided, lower_mma_strided},
      {"mma_expanded", supports_mma_expanded, lower_mma_expanded},
  }};
  return table;
}

std::span<const Candidate> gpu_merged_dots_candidates() {
  static constexpr std::array<Candidate, 1> table = {{
      {"pipelined", supports_merged, lower_merged},
  }};
  return table;
}

}  // namespace tenon::kernels
